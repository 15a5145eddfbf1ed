"""Paged keys and values in numpy: the blocks of one group."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvikk.backends.reference.codes import CODES
from kvikk.backends.reference.lookback import Places
from kvikk.shapes.dtypes import kvikk_dtype
from kvikk.shapes.shape import CacheGroup

Floats = NDArray[np.float32]


class Blocks:
    """The physical blocks of one group.

    Keys are ``[num_blocks, layers, block_size, row bytes]``, values likewise: all layers of a block
    lie together, so that it can be copied and moved as one. A row is one token's heads as ``codes``
    stores them, one after another.
    """

    def __init__(self, group: CacheGroup, num_blocks: int, block_size: int, kv_dtype: str) -> None:
        dtype = kvikk_dtype(kv_dtype)
        self._code, self._heads = CODES[kv_dtype], group.kv_heads
        shape = (num_blocks, len(group.layers), block_size)
        self._keys, self._values = (
            np.zeros((*shape, dtype.row_bytes(elements, group.kv_heads)), np.uint8)
            for elements in (group.key_elements, group.value_elements)
        )

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

    def _encode(self, x: Floats) -> NDArray[np.uint8]:
        heads = np.ascontiguousarray(x).reshape(len(x) * self._heads, -1)
        return self._code.encode(heads).reshape(len(x), -1)

    def _decode(self, stored: NDArray[np.uint8]) -> Floats:
        heads = stored.reshape(len(stored) * self._heads, -1)
        return self._code.decode(heads).reshape(len(stored), -1)
