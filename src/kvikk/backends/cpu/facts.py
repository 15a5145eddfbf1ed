"""What is settled when a kernel is compiled, and how a kernel asks for it."""

from dataclasses import dataclass
from typing import Any

from numba import types
from numba.extending import intrinsic

from kvikk.backends.cpu.tiles import DenseTile, IntegerTile, Tile

DENSE_KINDS = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Product:
    """A matrix product: the tile of its weights; with an activation, gate and up in one.

    A gated product's row tiles come in pairs, gate then up, and what it writes is ``up`` times the
    activation of ``gate``. With two ``parts`` a token's inputs are two neighbouring lanes, the
    second for what int8 leaves over of the first (see ``panels``).
    """

    tile: Tile
    activation: str | None = None
    parts: int = 1

    @property
    def input_bytes(self) -> int:
        """Bytes of one input: int8 for integer tiles, float32 for dense ones."""
        return 4 if isinstance(self.tile, DenseTile) else 1

    @property
    def bits(self) -> int:
        """Bits of an integer weight; 0 for dense tiles."""
        return self.tile.bits if isinstance(self.tile, IntegerTile) else 0

    @property
    def num_scales(self) -> int:
        """Scales of one row of an integer tile."""
        return self.tile.num_scales if isinstance(self.tile, IntegerTile) else 0

    @property
    def has_minimum(self) -> int:
        """Whether integers count from a minimum rather than around zero."""
        return int(isinstance(self.tile, IntegerTile) and self.tile.has_minimum)

    @property
    def dense_kind(self) -> int:
        """0, 1, 2 for dense F32, F16, BF16."""
        return DENSE_KINDS.index(self.tile.dtype) if isinstance(self.tile, DenseTile) else -1

    @property
    def gated(self) -> int:
        """0 for no activation, 1 for SiLU, 2 for GELU."""
        return (None, "silu", "gelu_tanh").index(self.activation)

    @property
    def tile_bytes(self) -> int:
        """Bytes of one tile."""
        return self.tile.num_bytes

    @property
    def row_tile_bytes(self) -> int:
        """Bytes of one output register's weights for one group of 32 inputs."""
        return self.tile.num_bytes * (1 if self.activation is None else 2)


@dataclass(frozen=True)
class RowTile:
    """Some query rows that share each load of a key or value of one KV head."""

    kv_dtype: str
    head_dim: int
    rows: int

    def __str__(self) -> str:
        return f"{self.rows} rows of {self.head_dim}"

    @property
    def element_bits(self) -> int:
        """Bits of a stored element."""
        return {"f32": 32, "bf16": 16, "int8": 8, "fp8": 8, "int4": 4}[self.kv_dtype]

    @property
    def elements_per_word(self) -> int:
        """Elements of a query, or weights, in 32 bits: where bfloat16 is stored, it is both."""
        return 2 if self.kv_dtype == "bf16" else 1

    @property
    def is_coded(self) -> bool:
        """Whether elements are stored with scales: see ``codes_plain``."""
        return self.element_bits < 16

    @property
    def is_float(self) -> bool:
        """Whether coded elements are small floats rather than whole numbers."""
        return self.kv_dtype == "fp8"

    @property
    def has_minimum(self) -> bool:
        """Whether 32 elements have a scale and a minimum, not a slot one scale."""
        return self.kv_dtype == "int4"

    @property
    def column_bytes(self) -> int:
        """From one stored column of values to the next: a word, or a byte."""
        return 1 if self.is_coded else 4

    @property
    def unit_bytes(self) -> int:
        """What a slot's values take, or a pair of slots' where they share words."""
        return self.head_dim * self.element_bits // 8 * self.elements_per_word

    @property
    def scales_offset(self) -> int:
        """Where a sub-block's scales begin, in bytes."""
        return 16 * self.head_dim * self.element_bits // 8


def row_tiles(kv_dtype: str, head_dim: int, num_queries: int) -> tuple[RowTile, RowTile]:
    """The wide tile, for many tokens at once, and the narrow one for what is left.

    ``num_queries`` query heads read one KV head. A tile is whole tokens' worth of rows, at most
    eight; where one token has more, a part that divides them evenly.
    """
    if num_queries > 8:
        wide = narrow = max(rows for rows in range(1, 9) if num_queries % rows == 0)
    else:
        wide, narrow = 8 // num_queries * num_queries, num_queries
    return RowTile(kv_dtype, head_dim, wide), RowTile(kv_dtype, head_dim, narrow)


def _integer_fact(name: str) -> Any:
    """An intrinsic: the integer property ``name`` of its CompileTime argument."""

    @intrinsic
    def fact(typing_context: Any, facts: Any) -> Any:
        value = int(getattr(facts.value, name))

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return context.get_constant(types.int64, value)

        return types.int64(facts), emit

    return fact


product_input_bytes = _integer_fact("input_bytes")
product_row_tile_bytes = _integer_fact("row_tile_bytes")
product_tile_bytes = _integer_fact("tile_bytes")
product_bits = _integer_fact("bits")
product_num_scales = _integer_fact("num_scales")
product_has_minimum = _integer_fact("has_minimum")
product_dense_kind = _integer_fact("dense_kind")
product_gated = _integer_fact("gated")
product_parts = _integer_fact("parts")
tile_rows = _integer_fact("rows")
tile_head_dim = _integer_fact("head_dim")
tile_elements_per_word = _integer_fact("elements_per_word")
tile_element_bits = _integer_fact("element_bits")
tile_is_float = _integer_fact("is_float")
