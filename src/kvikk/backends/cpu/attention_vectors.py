"""The three steps of attention over one piece, in vector instructions.

A register of keys is one word of 16 slots (or of 8, where registers are half as wide): multiplied
by that word of a query in every lane it adds to 16 scores. A register of values is 16 words of one
slot (or pair of slots): multiplied by that slot's weight in every lane it adds to 16 elements of
the result. Nothing is added across lanes.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kvikk.backends.cpu.attention import LOOKAHEAD, SCORE_SLOTS, SUB_BLOCK_SLOTS
from kvikk.backends.cpu.codes_vectors import load_numbers, load_scales, splat_scale
from kvikk.backends.cpu.dots import bfloats_of_floats, dot_bfloats, floats_of_bfloats
from kvikk.backends.cpu.facts import RowTile
from kvikk.backends.cpu.vectors import Float, Int, Loop, Vectors, Word64

_SLOTS = SUB_BLOCK_SLOTS
# Stored rows of a key to a turn of a loop: of words, of bytes, or of bytes of two words each. Half
# as many where a head's words do not fill whole turns.
_UNROLLED_ROWS = 16
# Registers that do not hold sums: for values and weights.
_OTHER_REGISTERS = 8


def _dot(v: Vectors, tile: RowTile, total: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """``total`` plus the dot products of the words of a and b."""
    if tile.kv_dtype == "bf16":
        return dot_bfloats(v, total, a, b)
    a, b = (v.builder.bitcast(words, total.type) for words in (a, b))
    return v.multiply_add(a, b, total)


@intrinsic
def _tile_scores(
    typing_context: Any,
    tile: Any,
    queries: Any,
    addresses: Any,
    num_sub_blocks: Any,
    value_offset: Any,
    scores: Any,
) -> Any:
    """See ``attention_plain.tile_scores_plain``."""
    facts: RowTile = tile.value
    words = facts.head_dim // facts.elements_per_word
    words_per_row = 2 if facts.has_minimum else 1
    turn_rows = _UNROLLED_ROWS
    if words % (turn_rows * words_per_row):
        turn_rows //= 2
    turn_words = turn_rows * words_per_row
    row_bytes = _SLOTS if facts.is_coded else 4 * _SLOTS

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        v = Vectors(context, builder)
        queries, addresses, num_sub_blocks, value_offset, scores = arguments[1:]
        num_turns = v.integer(words // turn_words)
        with Loop(v, num_sub_blocks, []) as sub_block:
            entry = v.add(addresses, v.times(sub_block.index, 8))
            keys = v.load(Word64, entry)
            # Fetch keys some sub-blocks ahead; near the end, the first values instead.
            ahead = v.add(sub_block.index, LOOKAHEAD)
            beyond = builder.sub(ahead, num_sub_blocks)
            values = v.add(v.load(Word64, addresses, v.times(beyond, 8)), value_offset)
            more_keys = builder.icmp_signed("<", beyond, v.integer(0))
            values = builder.select(more_keys, keys, values)
            fetched = builder.select(more_keys, v.load(Word64, entry, 8 * LOOKAHEAD), values)
            for part in range(v.parts):
                with Loop(v, num_turns, [v.floats(0.0)] * facts.rows) as turn:
                    turn_bytes = v.times(turn.index, turn_rows * row_bytes)
                    key_rows, fetched_rows = v.add(keys, turn_bytes), v.add(fetched, turn_bytes)
                    query_words = v.add(queries, v.times(turn.index, 4 * turn_words))
                    if facts.has_minimum:
                        scales = v.add(keys, v.times(turn.index, 4 * _SLOTS))
                        offset = facts.scales_offset + 2 * v.lanes * part
                        scale = load_scales(v, facts, scales, offset)
                        minimum = load_scales(v, facts, scales, offset + 2 * _SLOTS)
                    for index in range(turn_words):
                        row, is_upper = index // words_per_row, index % words_per_row > 0
                        word = row + turn_rows * is_upper
                        if not facts.is_coded:
                            offset = row_bytes * row + 4 * v.lanes * part
                            key = v.load(v.lanes_of(Int), key_rows, offset)
                        else:
                            offset = row_bytes * row + v.lanes * part
                            key = load_numbers(v, facts, key_rows, offset, is_upper)
                        if facts.has_minimum:
                            key = v.multiply_add(key, scale, minimum)
                        if part == 0 and not is_upper and row_bytes * row % 64 == 0:
                            v.prefetch(fetched_rows, row_bytes * row)
                        for i in range(facts.rows):
                            query = v.splat_load(Int, query_words, 4 * (i * words + word))
                            turn.carried[i] = _dot(v, facts, turn.carried[i], key, query)
                sums = turn.carried
                if facts.is_coded and not facts.has_minimum:
                    scale = load_scales(v, facts, keys, facts.scales_offset + 2 * v.lanes * part)
                    sums = [v.multiply(one, scale) for one in sums]
                out = v.add(scores, v.times(sub_block.index, 64))
                for i in range(facts.rows):
                    v.store(sums[i], out, 4 * (SCORE_SLOTS * i + v.lanes * part))
        return v.integer(0)

    return types.int64(tile, *[types.int64] * 5), emit


@intrinsic
def _tile_values(
    typing_context: Any,
    tile: Any,
    scores: Any,
    addresses: Any,
    num_sub_blocks: Any,
    value_offset: Any,
    weights: Any,
    seen: Any,
    totals: Any,
) -> Any:
    """See ``attention_plain.tile_values_plain``.

    A slice of the columns at a time. In the first slice's loop a sub-block's weights are made while
    those of the one before are multiplied by, a row's between two slots' products: they take other
    execution units. One sub-block too many is weighed, from what lies behind the scores.

    Weights are added up at the end, where registers are free. They take the place of the scores; as
    values are multiplied by them (in fewer bits, or by their slot's scale) they lie in ``weights``.
    """
    facts: RowTile = tile.value
    units = _SLOTS // facts.elements_per_word
    weight_bytes = 4 // facts.elements_per_word
    are_scaled_by_slot = facts.is_coded and not facts.has_minimum

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        v = Vectors(context, builder)
        scores, addresses, num_sub_blocks, value_offset, weights, seen, totals = arguments[1:]
        # What each register of scores belongs to: a row, and slots from the first of a sub-block.
        places = [(row, v.lanes * part) for row in range(facts.rows) for part in range(v.parts)]
        of_row = [slice(v.parts * row, v.parts * (row + 1)) for row in range(facts.rows)]

        def scores_of(sub_block: ir.Value) -> ir.Value:
            return v.add(scores, v.times(sub_block, 4 * _SLOTS))

        def weights_of(sub_block: ir.Value) -> ir.Value:
            return v.add(weights, v.times(sub_block, 4 * units))

        def values_of(sub_block: ir.Value, ahead: int = 0) -> ir.Value:
            entry = v.add(addresses, v.times(sub_block, 8))
            return v.add(v.load(Word64, entry, 8 * ahead), value_offset)

        with Loop(v, num_sub_blocks, [v.floats(-1e30)] * len(places)) as loop:
            for i, (row, slot) in enumerate(places):
                offset = 4 * (SCORE_SLOTS * row + slot)
                score = v.load(v.lanes_of(Float), scores_of(loop.index), offset)
                loop.carried[i] = v.maximum(loop.carried[i], score)
        largest = [v.largest(loop.carried[registers]) for registers in of_row]
        for row in range(facts.rows):
            v.store(largest[row], seen, 8 * row)

        def weigh(sub_block: ir.Value, values: ir.Value, row: int, slot: int) -> None:
            place = v.add(scores_of(sub_block), 4 * (SCORE_SLOTS * row + slot))
            out = v.add(weights_of(sub_block), 4 * SCORE_SLOTS * row + weight_bytes * slot)
            score = v.load(v.lanes_of(Float), place)
            below = builder.fsub(score, v.splat(largest[row]))
            if facts.kv_dtype == "bf16":  # which keeps 8 bits
                multiplied = bfloats_of_floats(v, v.exp2(below, terms=3))
                weight = floats_of_bfloats(v, multiplied)
            else:
                multiplied = weight = v.exp2(below, terms=4 if facts.is_coded else 6)
                if are_scaled_by_slot:
                    scale = load_scales(v, facts, values, facts.scales_offset + 2 * slot)
                    multiplied = v.multiply(weight, scale)
            v.store(multiplied, out)
            v.store(weight, place)

        first_values = values_of(v.integer(0))
        for row, slot in places:
            weigh(v.integer(0), first_values, row, slot)

        registers = facts.head_dim // v.lanes
        limit = (v.num_registers - _OTHER_REGISTERS) // facts.rows
        width = max(n for n in range(1, limit + 1) if registers % n == 0)
        for first in range(0, registers, width):
            with Loop(v, num_sub_blocks, [v.floats(0.0)] * (facts.rows * width)) as loop:
                following = v.add(loop.index, 1)
                values, next_values = values_of(loop.index), values_of(following)
                fetched = values_of(loop.index, LOOKAHEAD)
                row_weights = weights_of(loop.index)
                for unit in range(units):
                    columns = [
                        _load_value(v, facts, values, fetched, unit, v.lanes * (first + i))
                        for i in range(width)
                    ]
                    for row in range(facts.rows):
                        weight = v.splat_load(Int, row_weights, 4 * (SCORE_SLOTS * row + unit))
                        for i in range(width):
                            one = row * width + i
                            loop.carried[one] = _dot(
                                v, facts, loop.carried[one], columns[i], weight
                            )
                    if first == 0:
                        begin, end = (len(places) * i // units for i in (unit, unit + 1))
                        for place in places[begin:end]:
                            weigh(following, next_values, *place)
            for row in range(facts.rows):
                for i in range(width):
                    offset = 4 * (facts.head_dim * row + v.lanes * (first + i))
                    v.store(loop.carried[row * width + i], totals, offset)

        with Loop(v, num_sub_blocks, [v.floats(0.0)] * len(places)) as loop:
            for i, (row, slot) in enumerate(places):
                offset = 4 * (SCORE_SLOTS * row + slot)
                weight = v.load(v.lanes_of(Float), scores_of(loop.index), offset)
                loop.carried[i] = builder.fadd(loop.carried[i], weight)
        for row, own in enumerate(of_row):
            v.store(v.sum(loop.carried[own]), seen, 8 * row + 4)
        return v.integer(0)

    return types.int64(tile, *[types.int64] * 7), emit


def _load_value(
    v: Vectors, tile: RowTile, values: ir.Value, fetched: ir.Value, unit: int, column: int
) -> ir.Value:
    """A register of one slot's values (or of a pair's) from ``column`` on; fetches a later one."""
    place, is_upper = column, False
    if tile.has_minimum:
        place, is_upper = column // 32 * 16 + column % 16, column % 32 >= 16
    offset = unit * tile.unit_bytes + place * tile.column_bytes
    if offset % 64 == 0 and not is_upper:
        v.prefetch(fetched, offset)
    if not tile.is_coded:
        return v.load(v.lanes_of(Int), values, offset)
    numbers = load_numbers(v, tile, values, offset, is_upper)
    if not tile.has_minimum:
        return numbers
    scale_offset = tile.scales_offset + 4 * _SLOTS * (column // 32) + 2 * unit
    scale, minimum = (
        splat_scale(v, values, offset) for offset in (scale_offset, scale_offset + 2 * _SLOTS)
    )
    return v.multiply_add(numbers, scale, minimum)


@intrinsic
def _tile_join(
    typing_context: Any, tile: Any, seen: Any, totals: Any, piece_seen: Any, piece_totals: Any
) -> Any:
    """See ``attention_plain.tile_join_plain``."""
    facts: RowTile = tile.value

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        v = Vectors(context, builder)
        seen, totals, piece_seen, piece_totals = arguments[1:]
        for row in range(facts.rows):
            pairs = [
                [v.splat_load(Float, address, 8 * row + offset) for address in (seen, piece_seen)]
                for offset in (0, 4)
            ]
            largest = v.maximum(*pairs[0])
            # One of both has the largest score, and weighs 1.
            above = builder.fsub(*reversed(pairs[0]))
            weight = v.exp2(builder.fneg(v.absolute(above)))
            piece_leads = builder.fcmp_ordered(">", above, v.floats(0.0))
            before = builder.select(piece_leads, weight, v.floats(1.0))
            piece = builder.select(piece_leads, v.floats(1.0), weight)

            def joined(
                a: ir.Value, b: ir.Value, before: ir.Value = before, piece: ir.Value = piece
            ) -> ir.Value:
                return v.multiply_add(b, piece, v.multiply(a, before))

            for offset, value in ((0, largest), (4, joined(*pairs[1]))):
                v.store(builder.extract_element(value, ir.Constant(Int, 0)), seen, 8 * row + offset)
            for column in range(0, facts.head_dim, v.lanes):
                offset = 4 * (facts.head_dim * row + column)
                both = (v.load(v.lanes_of(Float), one, offset) for one in (totals, piece_totals))
                v.store(joined(*both), totals, offset)
        return v.integer(0)

    return types.int64(tile, *[types.int64] * 4), emit


def tile_scores_vectors(tile, queries, addresses, num_sub_blocks, value_offset, scores):
    """The twin of ``tile_scores_plain``."""
    return _tile_scores(tile, queries, addresses, num_sub_blocks, value_offset, scores)


def tile_values_vectors(
    tile, scores, addresses, num_sub_blocks, value_offset, weights, seen, totals
):
    """The twin of ``tile_values_plain``."""
    return _tile_values(
        tile, scores, addresses, num_sub_blocks, value_offset, weights, seen, totals
    )


def tile_join_vectors(tile, seen, totals, piece_seen, piece_totals):
    """The twin of ``tile_join_plain``."""
    return _tile_join(tile, seen, totals, piece_seen, piece_totals)
