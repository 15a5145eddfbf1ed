"""Keys and values of few bits, read into registers. ``codes_plain`` says where they lie."""

from llvmlite import ir

from kvikk.backends.cpu.dots import floats_of_bfloats
from kvikk.backends.cpu.facts import RowTile
from kvikk.backends.cpu.vectors import Byte, Int, Short, Vectors


def load_numbers(
    v: Vectors, tile: RowTile, address: ir.Value, offset: int, is_upper: bool
) -> ir.Value:
    """A register of elements before their scales, from neighbouring bytes.

    ``is_upper`` says which half of a byte, where two elements share one.
    """
    builder = v.builder
    codes = v.load(v.lanes_of(Byte), address, offset)
    if tile.element_bits == 4:
        words = builder.zext(codes, v.lanes_of(Int))
        half = builder.lshr(words, v.words(4)) if is_upper else builder.and_(words, v.words(15))
        return builder.sitofp(half, v.floats(0).type)
    if not tile.is_float:
        return builder.sitofp(builder.sext(codes, v.lanes_of(Int)), v.floats(0).type)
    # Sign to bit 15, all else to bits 7 … 13: the float16 that is 2**-8 of it, for any e4m3.
    halves = builder.ashr(
        builder.shl(builder.sext(codes, v.lanes_of(Short)), _shorts(v, 8)), _shorts(v, 1)
    )
    return v.floats_of_halves(builder.and_(halves, _shorts(v, 0xBFFF)))


def load_scales(v: Vectors, tile: RowTile, address: ir.Value, offset: int) -> ir.Value:
    """What the numbers of a register's slots are multiplied by."""
    scales = floats_of_bfloats(v, v.load(v.lanes_of(Short), address, offset))
    return v.multiply(scales, v.floats(256.0)) if tile.is_float else scales


def splat_scale(v: Vectors, address: ir.Value, offset: int) -> ir.Value:
    """One slot's scale, or its minimum, in every lane."""
    return floats_of_bfloats(v, v.splat_load(Short, address, offset))


def _shorts(v: Vectors, value: int) -> ir.Value:
    return ir.Constant(v.lanes_of(Short), [ir.Constant(Short, value)] * v.lanes)
