"""Weight tiles: 16 output rows by 32 input columns, at the file's own number of bits.

One register lane belongs to one output row, so that a tile times one token is 16 sums side by side
and nothing is ever added across lanes. A lane's 32 bits hold four columns of its row; the 32
columns are eight such *words*:

    word w, lane r, byte b    column 4w + b of row r

An integer tile lays them out as follows, each line a register of 64 bytes or half of one:

    4 bits        4 x 64    nibbles: register j holds word j in the low halves, word j + 4 in the
    high 5 bits        and 64    fifth bits: bit w of byte (r, b) belongs to word w
    6 bits        and 128   upper two bits: register h, bits 2i and 2i+1 belong to word 4h + i
    8 bits        8 x 64    bytes: register w holds word w
    scales        32        16 rows, float16 (twice, if columns 0 … 15 and 16 … 31 have their own)
    minima        32        16 rows, float16, where the format has them (twice, as scales)

The integers are unsigned. A weight is ``scale * (integer - zero_point)``, or ``scale * integer +
minimum``. A dense tile is 32 columns of 16 numbers each, in float32, float16 or bfloat16.

A matrix is its tiles one after another: all of the first 16 rows, then the next.
"""

from dataclasses import dataclass

TILE_ROWS = 16
TILE_COLUMNS = 32


@dataclass(frozen=True)
class IntegerTile:
    """Integers of ``bits`` bits with a float16 scale for ``32 / num_scales`` columns of a row."""

    bits: int
    num_scales: int = 1
    has_minimum: bool = False

    def __str__(self) -> str:
        scales = " in two halves" if self.num_scales == 2 else ""
        return f"{self.bits} bits{scales}" + (" and minimum" if self.has_minimum else "")

    @property
    def zero_point(self) -> int:
        """The integer that stands for zero, where there is no minimum."""
        return 0 if self.has_minimum else 1 << (self.bits - 1)

    @property
    def largest(self) -> int:
        """The largest integer."""
        return (1 << self.bits) - 1

    @property
    def extra_bits_offset(self) -> int:
        """Where the bits above the nibbles begin, in bytes."""
        return TILE_ROWS * TILE_COLUMNS // 2

    @property
    def scales_offset(self) -> int:
        """Where the scales begin, in bytes."""
        return TILE_ROWS * TILE_COLUMNS * self.bits // 8

    @property
    def minima_offset(self) -> int:
        """Where the minima begin, in bytes."""
        return self.scales_offset + 2 * TILE_ROWS * self.num_scales

    @property
    def num_bytes(self) -> int:
        """Bytes of one tile."""
        return self.minima_offset + 2 * TILE_ROWS * self.num_scales * self.has_minimum


@dataclass(frozen=True)
class DenseTile:
    """Numbers of ``F32``, ``F16`` or ``BF16``."""

    dtype: str

    def __str__(self) -> str:
        return self.dtype

    @property
    def element_bytes(self) -> int:
        """Bytes of one number."""
        return 4 if self.dtype == "F32" else 2

    @property
    def num_bytes(self) -> int:
        """Bytes of one tile."""
        return TILE_ROWS * TILE_COLUMNS * self.element_bytes


Tile = IntegerTile | DenseTile

# The tile that holds a type. K types have scales of scales; the products are kept as float16,
# 2**-12 of a weight away at most, a sixteenth of what quantising the inputs costs. Two and three
# bits take four here, and IQ4_NL's sixteen numbers are looked up once and take eight.
TILES: dict[str, Tile] = {
    "F32": DenseTile("F32"),
    "F16": DenseTile("F16"),
    "BF16": DenseTile("BF16"),
    "Q4_0": IntegerTile(4),
    "Q4_1": IntegerTile(4, has_minimum=True),
    "IQ4_NL": IntegerTile(8),
    "Q2_K": IntegerTile(4, num_scales=2, has_minimum=True),
    "Q3_K": IntegerTile(4, num_scales=2),
    "Q4_K": IntegerTile(4, has_minimum=True),
    "Q5_0": IntegerTile(5),
    "Q5_1": IntegerTile(5, has_minimum=True),
    "Q5_K": IntegerTile(5, has_minimum=True),
    "Q6_K": IntegerTile(6, num_scales=2),
    "Q8_0": IntegerTile(8),
}
