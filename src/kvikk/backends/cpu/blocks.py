"""The physical blocks of one cache group: one contiguous run of bytes a block.

    block    [layer of the group][KV head][keys | values]       see ``attention`` for the inside

so that a tier reads or writes a block as it lies.
"""

import mmap
from collections.abc import Sequence

import numpy as np

from kvikk.backends.base import Plan
from kvikk.backends.cpu.attention import SUB_BLOCK_SLOTS
from kvikk.backends.cpu.memory import Region
from kvikk.errors import ModelError
from kvikk.models.decoder import Attention
from kvikk.shapes.dtypes import kvikk_dtype
from kvikk.shapes.shape import CacheGroup


def block_bytes(group: CacheGroup, plan: Plan) -> int:
    """Bytes of one block of ``group``; ModelError for a plan that this backend cannot keep."""
    if plan.block_size % SUB_BLOCK_SLOTS or plan.block_size <= 0:
        raise ModelError(
            f"a block size of {plan.block_size}: the CPU backend needs a multiple of "
            f"{SUB_BLOCK_SLOTS} tokens"
        )
    if group.key_elements != group.value_elements:
        raise ModelError("the CPU backend needs keys and values of one size")
    return group.block_bytes(plan.block_size, plan.kv_dtype)


class BlockStore:
    """``num_blocks`` blocks of one group."""

    def __init__(self, group: CacheGroup, num_blocks: int, plan: Plan) -> None:
        self.block_bytes = block_bytes(group, plan)
        self.num_blocks = num_blocks
        self._dtype, self._block_size = kvikk_dtype(plan.kv_dtype), plan.block_size
        self._layer_bytes = self.block_bytes // len(group.layers)
        self._region = Region()
        self._offset = self._region.place(num_blocks * self.block_bytes)
        self._region.allocate()
        self._bytes = self._region.bytes_at(self._offset, num_blocks * self.block_bytes).reshape(
            num_blocks, self.block_bytes
        )

    def layer_address(self, index: int) -> int:
        """Where the group's layer ``index`` begins in block 0."""
        return self._region.address(self._offset) + index * self._layer_bytes

    def head_bytes(self, attention: Attention) -> int:
        """Bytes of one KV head of a layer in a block: its keys, then its values."""
        return 2 * self._block_size * self._dtype.row_bytes(attention.head_dim)

    def copy(self, source: int, target: int) -> None:
        """Copy one block over another."""
        self.check((source, target))
        self._bytes[target] = self._bytes[source]

    def touch(self, block: int) -> None:
        """Write to each page of a block what is there."""
        self.check((block,))
        pages = self._bytes[block, :: mmap.PAGESIZE]
        np.bitwise_or(pages, 0, out=pages)

    def read(self, blocks: Sequence[int]) -> bytes:
        """The blocks' bytes one after another."""
        self.check(blocks)
        return b"".join(self._bytes[block].tobytes() for block in blocks)

    def write(self, blocks: Sequence[int], data: bytes) -> None:
        """The inverse of ``read``."""
        if len(data) != len(blocks) * self.block_bytes:
            raise ValueError(
                f"{len(blocks)} blocks of {self.block_bytes} bytes cannot be filled with "
                f"{len(data)} bytes"
            )
        self.check(blocks)
        view = memoryview(data)
        for index, block in enumerate(blocks):
            part = view[index * self.block_bytes : (index + 1) * self.block_bytes]
            self._bytes[block].data[:] = part

    def check(self, blocks: Sequence[int]) -> None:
        """Raise ValueError if one of ``blocks`` does not exist."""
        for block in blocks:
            if not 0 <= block < self.num_blocks:
                raise ValueError(f"block {block} is not one of {self.num_blocks}")
