"""A block at rest: a header that says what it is, then its bytes.

    magic  version  encoding  origin  tier key  block bytes  checksum | payload
    4 B    2 B      2 B       32 B    33 B      8 B          16 B

``origin`` is the root key of the engine without a tenant's salt: model content, block size, KV type
and numerics. The checksum (XXH3, 128 bits) is over all of the header before it and the payload: it
finds damage, and is no defence against somebody who may write to the tier.

The encodings: 0 is the block as it lies; 1 has the bytes that hold sign and exponent compressed by
zstd, and the others as they are.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
import zstandard

_HEADER = struct.Struct("<4sHH32s33sQ16s")
_MAGIC = b"kvkb"
_VERSION = 1
_RAW, _EXPONENTS = 0, 1
_CHECKSUM_BYTES = 16
HEADER_BYTES = _HEADER.size


class UnfitError(Exception):
    """Stored bytes are not the block that was asked for; says why."""


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """How one engine's blocks are stored: its ``origin``, and bytes a block of each group."""

    origin: bytes
    block_bytes: tuple[int, ...]

    def stored_bytes(self, key: bytes) -> int:
        """Header and payload of a block that is not compressed."""
        return HEADER_BYTES + self.block_bytes[key[-1]]

    def pack(self, key: bytes, block: bytes, element_bytes: int = 1) -> bytes:
        """Header and payload. Elements of more than one byte are compressed, little-endian."""
        if element_bytes == 1:
            return self._with_header(key, len(block), _RAW, block)
        planes = np.frombuffer(block, np.uint8).reshape(-1, element_bytes)
        exponents = zstandard.ZstdCompressor(level=1).compress(planes[:, -1].tobytes())
        parts = (
            element_bytes.to_bytes(1, "little"),
            len(exponents).to_bytes(8, "little"),
            exponents,
            planes[:, :-1].tobytes(),
        )
        return self._with_header(key, len(block), _EXPONENTS, b"".join(parts))

    def unpack(self, key: bytes, stored: bytes) -> bytes:
        """The block. Raises UnfitError, saying why, for anything but that."""
        if len(stored) < HEADER_BYTES:
            raise UnfitError(f"{len(stored)} bytes are no block")
        magic, version, encoding, origin, name, num_bytes, checksum = _HEADER.unpack_from(stored)
        if magic != _MAGIC or version != _VERSION:
            raise UnfitError("its format is unknown")
        if name != key:
            raise UnfitError("it is another block")
        if origin != self.origin:
            raise UnfitError("it is of another model, KV type or numerics")
        if num_bytes != self.block_bytes[key[-1]]:
            raise UnfitError(f"it has {num_bytes} bytes, not {self.block_bytes[key[-1]]}")
        payload = memoryview(stored)[HEADER_BYTES:]
        if checksum != _checksum(stored[: HEADER_BYTES - _CHECKSUM_BYTES], payload):
            raise UnfitError("its checksum does not fit")
        try:
            block = bytes(payload) if encoding == _RAW else _decompressed(payload, num_bytes)
        except (ValueError, IndexError, ZeroDivisionError, zstandard.ZstdError):
            raise UnfitError("its encoding is unknown") from None
        if encoding not in (_RAW, _EXPONENTS) or len(block) != num_bytes:
            raise UnfitError("its encoding is unknown")
        return block

    def _with_header(self, key: bytes, num_bytes: int, encoding: int, payload: bytes) -> bytes:
        header = _HEADER.pack(_MAGIC, _VERSION, encoding, self.origin, key, num_bytes, b"")
        header = header[:-_CHECKSUM_BYTES]
        return b"".join((header, _checksum(header, payload), payload))


def _checksum(header: bytes, payload: bytes | memoryview) -> bytes:
    digest = xxhash.xxh3_128(header)
    digest.update(payload)
    return digest.digest()


def _decompressed(payload: memoryview, num_bytes: int) -> bytes:
    element_bytes = payload[0]
    stop = 9 + int.from_bytes(payload[1:9], "little")
    elements = num_bytes // element_bytes
    planes = np.empty((elements, element_bytes), np.uint8)
    exponents = zstandard.ZstdDecompressor().decompress(payload[9:stop], max_output_size=elements)
    planes[:, -1] = np.frombuffer(exponents, np.uint8)
    planes[:, :-1] = np.frombuffer(payload[stop:], np.uint8).reshape(elements, -1)
    return planes.tobytes()


def fitting(
    block_format: BlockFormat, keys: Sequence[bytes], stored: Sequence[bytes | None]
) -> tuple[list[bytes | None], dict[bytes, str]]:
    """The blocks in what a tier gave, and why others are unfit, by key."""
    blocks: list[bytes | None] = []
    unfit: dict[bytes, str] = {}
    for key, value in zip(keys, stored, strict=True):
        try:
            blocks.append(None if value is None else block_format.unpack(key, value))
        except UnfitError as error:
            blocks.append(None)
            unfit[key] = str(error)
    return blocks, unfit
