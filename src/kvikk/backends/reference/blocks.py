"""Paged keys and values in numpy: the blocks of one group."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvikk.backends.reference.lookback import Places
from kvikk.shapes.shape import CacheGroup

Floats = NDArray[np.float32]

ELEMENT_BYTES = {"f32": 4, "bf16": 2}


def block_bytes(group: CacheGroup, block_size: int, kv_dtype: str) -> int:
    """Bytes of one block: keys and values of ``block_size`` tokens in all layers of ``group``."""
    return block_size * group.elements_per_token * ELEMENT_BYTES[kv_dtype]


class Blocks:
    """The physical blocks of one group.

    Keys are ``[num_blocks, layers, block_size, key_elements]``, values likewise: all layers of a
    block lie together, so that it can be copied and moved as one.
    """

    def __init__(self, group: CacheGroup, num_blocks: int, block_size: int, kv_dtype: str) -> None:
        self._bfloat16 = kv_dtype == "bf16"
        stored = np.uint16 if self._bfloat16 else np.float32
        shape = (num_blocks, len(group.layers), block_size)
        self._keys = np.zeros((*shape, group.key_elements), stored)
        self._values = np.zeros((*shape, group.value_elements), stored)

    def store(self, layer: int, places: Places, keys: Floats, values: Floats) -> None:
        """Put keys and values ``[T, elements]`` at ``places`` ``[T]``."""
        self._keys[places.blocks, layer, places.slots] = self._encode(keys)
        self._values[places.blocks, layer, places.slots] = self._encode(values)

    def fetch(self, layer: int, places: Places) -> tuple[Floats, Floats]:
        """The keys and values ``[C, elements]`` at ``places`` ``[C]``."""
        return (
            self._decode(self._keys[places.blocks, layer, places.slots]),
            self._decode(self._values[places.blocks, layer, places.slots]),
        )

    def copy(self, source: int, target: int) -> None:
        """Make block ``target`` equal to block ``source``."""
        self._keys[target] = self._keys[source]
        self._values[target] = self._values[source]

    def read(self, blocks: Sequence[int]) -> bytes:
        """The bytes of ``blocks``, one after another: each its keys, then its values."""
        return b"".join(
            self._keys[block].tobytes() + self._values[block].tobytes() for block in blocks
        )

    def write(self, blocks: Sequence[int], data: bytes) -> None:
        """The inverse of ``read``. Raises ValueError if ``data`` has another length than it."""
        key_bytes, value_bytes = self._keys[0].nbytes, self._values[0].nbytes
        each = key_bytes + value_bytes
        if len(data) != len(blocks) * each:
            raise ValueError(f"{len(data)} bytes are not {len(blocks)} blocks of {each}")
        for index, block in enumerate(blocks):
            for array, start in (
                (self._keys, index * each),
                (self._values, index * each + key_bytes),
            ):
                part = np.frombuffer(data, array.dtype, array[block].size, start)
                array[block] = part.reshape(array[block].shape)

    def _encode(self, x: Floats) -> NDArray[np.float32] | NDArray[np.uint16]:
        if not self._bfloat16:
            return x
        # Round to nearest, ties to even: bfloat16 is the upper half of a float32.
        bits = x.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)

    def _decode(self, stored: NDArray[np.float32] | NDArray[np.uint16]) -> Floats:
        if not self._bfloat16:
            return stored.astype(np.float32, copy=False)
        return (stored.astype(np.uint32) << 16).view(np.float32)
