"""GGUF files: a header of typed metadata, a list of tensors, and their bytes, memory-mapped.

Opening a file walks its header once and copies no array, so that a vocabulary of 262,144 tokens
costs some tens of milliseconds. Format: ggml's ``docs/gguf.md``, versions 2 and 3, little endian.
A file may be cut or forged anywhere: whatever is wrong with it is one ModelError that names it.
"""

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from kvikk.errors import ModelError
from kvikk.files.quantization import BLOCK_FORMATS, num_bytes
from kvikk.files.tensors import Tensor

# fmt: off
# ggml's tensor types by number; a dash is a number no longer in use.
_TENSOR_TYPES = (
    "F32", "F16", "Q4_0", "Q4_1", "-", "-", "Q5_0", "Q5_1", "Q8_0", "Q8_1",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S",
    "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64", "F64", "IQ1_M",
    "BF16", "-", "-", "-", "TQ1_0", "TQ2_0", "-", "-", "-", "MXFP4",
)
# Metadata types by number; the scalars by numpy's names.
_METADATA_TYPES = (
    "<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?", "string", "array", "<u8", "<i8", "<f8",
)
# fmt: on

_U32 = Struct("<I")
_U64 = Struct("<Q")
_MAX_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32


class StringArray:
    """An array of strings in a header, decoded when asked for and not before."""

    def __init__(self, path: Path, data: mmap.mmap, start: int, length: int) -> None:
        self._path, self._data, self._start, self._length = path, data, start, length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[str]:
        position, data, length_at = self._start, self._data, _U64.unpack_from
        try:
            for _ in range(self._length):
                start = position + 8
                position = start + length_at(data, position)[0]
                yield data[start:position].decode()
        except UnicodeDecodeError:
            raise ModelError(f"{self._path}: a string in its metadata is not UTF-8") from None


Value = bool | int | float | str | NDArray[np.generic] | StringArray


@dataclass(frozen=True)
class GGUFFile:
    """An open GGUF file. ``metadata`` is in the file's order; numeric arrays are numpy views."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, Tensor]


def open_gguf(path: Path, weights: bool = True) -> GGUFFile:
    """Read the header of ``path`` and map its tensors.

    ``weights`` False is for those who only read the configuration: tensors then may be of any type,
    and the data of those that are not read is left out. Raises ModelError, naming the file, if it
    cannot be read or is not one whole GGUF file.
    """
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:  # how mmap refuses an empty file
        raise ModelError(f"{path}: the file is empty; expected a GGUF file") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    return _Header(path, data, weights).read()


class _Header:
    """A cursor over the header. Every read checks that the bytes are there."""

    def __init__(self, path: Path, data: mmap.mmap, weights: bool) -> None:
        self.path, self.data, self.weights, self.position = path, data, weights, 0

    def read(self) -> GGUFFile:
        if self.data[:4] != b"GGUF":
            raise self.error("not a GGUF file (it does not begin with the letters GGUF)")
        self.skip(4)
        version = self.u32()
        if version in (2 << 24, 3 << 24):
            raise self.error("a big-endian GGUF file; only little-endian ones are read")
        if version not in (2, 3):
            raise self.error(f"GGUF version {version}; versions 2 and 3 are read")
        num_tensors = self.count("tensors", 24)
        num_pairs = self.count("metadata entries", 13)
        metadata: dict[str, Value] = {}
        for _ in range(num_pairs):
            key = self.string()
            if key in metadata:
                raise self.error(f"metadata key {key!r} appears twice")
            metadata[key] = self.value(key)
        return GGUFFile(self.path, metadata, self.tensors(num_tensors, metadata))

    def tensors(self, num_tensors: int, metadata: Mapping[str, Value]) -> dict[str, Tensor]:
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not (0 < alignment <= 1 << 20):
            raise self.error(f"alignment {alignment!r} is not a number of bytes")
        entries = [self.tensor_entry() for _ in range(num_tensors)]
        bytes_of_file = np.frombuffer(self.data, np.uint8)
        data_start = _align(self.position, alignment)
        tensors: dict[str, Tensor] = {}
        # The data follow each other in the order of the list, each at the next aligned offset.
        expected_offset: int | None = 0
        for name, dtype, shape, offset, size_bytes in entries:
            if name in tensors:
                raise self.error(f"tensor {name!r} appears twice")
            if size_bytes is None:
                tensors[name] = Tensor(name, dtype, shape, bytes_of_file[:0])
                expected_offset = None
                continue
            if expected_offset is not None and offset != expected_offset:
                raise self.error(
                    f"tensor {name!r} lies at {offset} of the data, not at {expected_offset}"
                )
            start = data_start + offset
            stop = start + size_bytes
            if stop > len(bytes_of_file):
                raise self.error(
                    f"the file is truncated: tensor {name!r} ends at byte {stop}, "
                    f"the file has {len(bytes_of_file)}"
                )
            tensors[name] = Tensor(name, dtype, shape, bytes_of_file[start:stop])
            expected_offset = _align(offset + size_bytes, alignment)
        return tensors

    def tensor_entry(self) -> tuple[str, str, tuple[int, ...], int, int | None]:
        """Name, type, shape, offset in the data, size in bytes; None where that is not known."""
        name = self.string()
        num_dimensions = self.u32()
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise self.error(
                f"tensor {name!r} has {num_dimensions} dimensions; 1 to 4 are possible"
            )
        # GGUF writes the innermost dimension first.
        shape = tuple(self.u64() for _ in range(num_dimensions))[::-1]
        if 0 in shape or prod(shape) >= 1 << 62:
            raise self.error(f"tensor {name!r} has the impossible shape {shape}")
        number = self.u32()
        dtype = _TENSOR_TYPES[number] if number < len(_TENSOR_TYPES) else f"number {number}"
        if dtype not in BLOCK_FORMATS and not self.weights:
            return name, dtype, shape, self.u64(), None
        if dtype not in BLOCK_FORMATS:
            known = " ".join(BLOCK_FORMATS)
            raise self.error(
                f"tensor {name!r} is of type {dtype}, which is not read; known: {known}"
            )
        offset = self.u64()
        try:
            return name, dtype, shape, offset, num_bytes(dtype, shape)
        except ValueError as error:
            raise self.error(f"tensor {name!r} of type {dtype}: {error}") from None

    def value(self, key: str) -> Value:
        dtype = self.metadata_type(key)
        if dtype == "string":
            return self.string()
        if dtype == "array":
            return self.array(key)
        scalar: bool | int | float = self.scalars(dtype, 1)[0].item()
        return scalar

    def array(self, key: str) -> NDArray[np.generic] | StringArray:
        dtype = self.metadata_type(key)
        if dtype == "array":
            raise self.error(f"metadata {key!r} is an array of arrays")
        if dtype != "string":
            return self.scalars(dtype, self.count(key, np.dtype(dtype).itemsize))
        length = self.count(key, 8)
        start = self.position
        self.skip_strings(length)
        return StringArray(self.path, self.data, start, length)

    def metadata_type(self, key: str) -> str:
        number = self.u32()
        if number >= len(_METADATA_TYPES):
            raise self.error(f"metadata {key!r} is of the unknown type {number}")
        return _METADATA_TYPES[number]

    def scalars(self, dtype: str, length: int) -> NDArray[np.generic]:
        start = self.position
        self.skip(length * np.dtype(dtype).itemsize)
        return np.frombuffer(self.data, dtype, length, start)

    def string(self) -> str:
        length = self.u64()
        start = self.position
        self.skip(length)
        try:
            return self.data[start : self.position].decode()
        except UnicodeDecodeError:
            raise self.error("a string in its metadata is not UTF-8") from None

    def skip_strings(self, length: int) -> None:
        # The loop that opening a large vocabulary consists of: no call and no check that the end
        # does not make up for.
        position, end = self.position, len(self.data)
        data, length_at, last = self.data, _U64.unpack_from, end - 8
        for _ in range(length):
            if position > last:
                raise self.truncated()
            position += 8 + length_at(data, position)[0]
        self.position = position
        self.skip(0)

    def count(self, what: str, smallest_bytes: int) -> int:
        """A number of things of at least ``smallest_bytes`` each, and the file can hold them."""
        count = self.u64()
        if count * smallest_bytes > len(self.data) - self.position:
            raise self.error(f"the file is truncated or damaged: it cannot hold {count} {what}")
        return count

    def u32(self) -> int:
        self.skip(4)
        number: int = _U32.unpack_from(self.data, self.position - 4)[0]
        return number

    def u64(self) -> int:
        self.skip(8)
        number: int = _U64.unpack_from(self.data, self.position - 8)[0]
        return number

    def skip(self, length: int) -> None:
        self.position += length
        if self.position > len(self.data):
            raise self.truncated()

    def truncated(self) -> ModelError:
        return self.error(
            f"the file is truncated: its header does not end within {len(self.data)} bytes"
        )

    def error(self, problem: str) -> ModelError:
        return ModelError(f"{self.path}: {problem}")


def _align(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
