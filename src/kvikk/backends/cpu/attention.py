"""Attention over blocks, read where they lie.

The context is cut at fixed positions into pieces of 256. Within a piece a row (one query head of
one token) has a largest score m, a sum l of 2**(score - m), and a sum of values weighted by it.
Pieces are joined in their order. The cuts depend on nothing but position, so that a row's bits do
not depend on what else is computed with it, nor on who computes which piece.

    slots of a piece     0        low                 high      256
                         |  before |  seen by this row |  after  |
                                     the window, and up to itself

Slots outside [low, high) weigh exactly zero. A block holds its keys and values by KV head, in
sub-blocks of 16 slots, so that blocks of 16 and of 32 tokens give the same sums:

    keys      [head_dim / e][16 slots][e]       e elements fill 32 bits: 2 of bfloat16, 1 of float32
    values    [16 slots / e][head_dim][e]

Either way a register is 16 words of 32 bits, and a product of two words is a dot product of e.
Types of 8 bits and less have a layout of their own, with scales: see ``codes_plain``.

This file is the walk; its three steps over a piece are kernels of their own: ``attention_plain``,
``attention_vectors``.
"""

import numpy as np

from kvikk.backends.cpu.curves import cap_row
from kvikk.backends.cpu.jit import inner, pointer_call
from kvikk.backends.cpu.raw import clear_words, copy_words, float32s, int32s, int64s
from kvikk.backends.cpu.records import (
    ITEM_MEMBER,
    ITEM_PART,
    ITEM_PIECE,
    ITEM_PIECE_END,
    ITEM_SEQUENCE,
    ITEM_TOKENS,
    WHOLE,
)

_tile_scores = pointer_call(5, num_facts=1)
_tile_values = pointer_call(7, num_facts=1)
tile_join = pointer_call(4, num_facts=1)
PIECE_SLOTS = 256
SUB_BLOCK_SLOTS = 16
# A row of scores, of 4 bytes each: a piece's, and room for a sub-block that is weighed ahead.
SCORE_SLOTS = PIECE_SLOTS + SUB_BLOCK_SLOTS
_SUB_BLOCKS_PER_PIECE = PIECE_SLOTS // SUB_BLOCK_SLOTS
# Sub-blocks asked for ahead of their use, a few KB.
LOOKAHEAD = 4
MAX_TILE_ROWS = 8
# Rows of an item, where a KV head has few queries: they share what is brought from far.
_ITEM_ROWS = 96
_FEWEST_ITEM_TOKENS = 16
# The score of a row that has seen nothing yet.
NOTHING_SEEN = np.float32(-1e30)


def max_item_tokens(num_queries: int) -> int:
    """How many tokens an item has at most, where ``num_queries`` query heads read one KV head."""
    return max(_ITEM_ROWS // num_queries, _FEWEST_ITEM_TOKENS)


def scratch_bytes(head_dim: int, num_queries: int) -> int:
    """What one thread needs for one item; see ``attend`` for what lies where."""
    item_rows = max_item_tokens(num_queries) * num_queries
    words = 2 * item_rows * (head_dim + 1) + MAX_TILE_ROWS * (head_dim + 2 * SCORE_SLOTS + 4)
    return 4 * words + 8 * (_SUB_BLOCKS_PER_PIECE + LOOKAHEAD) + 4096


@inner
def seen_bytes(num_queries):
    """The pairs (largest score, sum of weights) of some heads, in whole cache lines."""
    return (8 * num_queries + 63) // 64 * 64


def head_partial_bytes(head_dim: int, num_queries: int) -> int:
    """A part of a token's context, of one KV head; see ``head_partial``."""
    return int(seen_bytes.py_func(num_queries)) + 4 * num_queries * head_dim


@inner
def _list_sub_blocks(addresses, layer, table, kv_head, first, last):
    """Addresses of the keys of a piece's sub-blocks, from ``first`` on, and of some after it.

    ``last`` is the last sub-block that the item may look at. Those before its window have none.
    """
    base = layer.keys + kv_head * layer.head_bytes
    sub_block = min(first, last)
    block, within = sub_block // layer.sub_blocks, sub_block % layer.sub_blocks
    for index in range(len(addresses)):
        address = base + np.int64(table[block]) * layer.block_bytes
        addresses[index] = address + within * layer.sub_block_bytes
        if first + index < last:
            within += 1
            if within == layer.sub_blocks:
                block, within = block + 1, 0


@inner
def _hide_slots(scores, low, high):
    """Give slots outside of [low, high) a score that weighs nothing."""
    for slot in range(min(low, len(scores))):
        scores[slot] = -np.inf
    for slot in range(max(high, 0), len(scores)):
        scores[slot] = -np.inf


@inner
def attend(model, layer, group, queries_address, item, kv_head, scratch):
    """One item of attention work for one KV head: its tokens against its pieces.

    Writes finished rows to the model's ``attention``, or, where it is only a part of the tokens'
    context, to ``partials``. ``scratch`` is the thread's own:

        queries [item rows][words] | totals [item rows][head_dim] | seen [item rows][2]
        scores [8][272] | weights [8][272] | piece totals [8][head_dim] | piece seen [8][2]
        addresses of sub-blocks
    """
    positions = int32s(model.positions, model.num_tokens)
    num_tokens = item[ITEM_TOKENS]
    tokens = int64s(group.members + item[ITEM_MEMBER] * 8, num_tokens)
    table = int32s(
        group.tables + item[ITEM_SEQUENCE] * group.table_columns * 4, group.table_columns
    )
    head_dim, words = layer.head_dim, layer.head_words
    num_queries = layer.num_heads // layer.num_kv_heads
    num_rows = num_tokens * num_queries

    queries = scratch
    totals = queries + num_rows * words * 4
    seen_at = totals + num_rows * head_dim * 4
    scores = (seen_at + num_rows * 8 + 63) // 64 * 64
    weights = scores + MAX_TILE_ROWS * SCORE_SLOTS * 4
    piece_totals = weights + MAX_TILE_ROWS * SCORE_SLOTS * 4
    piece_seen = piece_totals + MAX_TILE_ROWS * head_dim * 4
    address_list = piece_seen + MAX_TILE_ROWS * 8
    addresses = int64s(address_list, _SUB_BLOCKS_PER_PIECE + LOOKAHEAD)

    for index in range(num_tokens):
        source = queries_address + tokens[index] * layer.num_heads * words * 4
        source += kv_head * num_queries * words * 4
        count = num_queries * words
        copy_words(source, queries + index * count * 4, count)
    clear_words(totals, num_rows * head_dim)
    for row in range(num_rows):
        seen = float32s(seen_at + row * 8, 2)
        seen[0], seen[1] = NOTHING_SEEN, np.float32(0)

    # Whoever shares the item sees all of its pieces; of one sequence, the last token sees most.
    last_slot = min(item[ITEM_PIECE_END] * PIECE_SLOTS, positions[tokens[num_tokens - 1]] + 1) - 1
    for piece in range(item[ITEM_PIECE], item[ITEM_PIECE_END]):
        start = piece * PIECE_SLOTS
        _list_sub_blocks(
            addresses,
            layer,
            table,
            kv_head,
            piece * _SUB_BLOCKS_PER_PIECE,
            last_slot // SUB_BLOCK_SLOTS,
        )
        row = 0
        while row < num_rows:
            is_wide = num_rows - row >= layer.wide_rows
            rows = layer.wide_rows if is_wide else layer.narrow_rows
            # The sub-blocks that any row of the tile sees.
            low_position = high_position = np.int64(positions[tokens[row // num_queries]])
            for index in range(row // num_queries + 1, (row + rows - 1) // num_queries + 1):
                low_position = min(low_position, positions[tokens[index]])
                high_position = max(high_position, positions[tokens[index]])
            low = max(low_position + 1 - group.window, 0) if group.window > 0 else 0
            first_slot = max(low - start, 0)
            end_slot = min(high_position + 1 - start, PIECE_SLOTS)
            if first_slot >= PIECE_SLOTS or end_slot <= 0:
                row += rows
                continue
            first = first_slot // SUB_BLOCK_SLOTS
            num_sub_blocks = (end_slot + SUB_BLOCK_SLOTS - 1) // SUB_BLOCK_SLOTS - first
            tile_addresses = address_list + first * 8
            _tile_scores(
                layer.wide_scores if is_wide else layer.narrow_scores,
                (
                    queries + row * words * 4,
                    tile_addresses,
                    num_sub_blocks,
                    layer.value_offset,
                    scores,
                ),
            )
            if layer.score_cap != 0:
                for index in range(rows):
                    row_scores = float32s(
                        scores + index * SCORE_SLOTS * 4, num_sub_blocks * SUB_BLOCK_SLOTS
                    )
                    cap_row(row_scores, np.float32(layer.score_cap))
            offset = start + first * SUB_BLOCK_SLOTS
            sees_all = low_position + 1 >= offset + num_sub_blocks * SUB_BLOCK_SLOTS and (
                group.window <= 0 or high_position + 1 - group.window <= offset
            )
            for index in range(0 if sees_all else rows):
                position = np.int64(positions[tokens[(row + index) // num_queries]])
                low = max(position + 1 - group.window, 0) if group.window > 0 else 0
                _hide_slots(
                    float32s(scores + index * SCORE_SLOTS * 4, num_sub_blocks * SUB_BLOCK_SLOTS),
                    low - offset,
                    position + 1 - offset,
                )
            _tile_values(
                layer.wide_values if is_wide else layer.narrow_values,
                (
                    scores,
                    tile_addresses,
                    num_sub_blocks,
                    layer.value_offset,
                    weights,
                    piece_seen,
                    piece_totals,
                ),
            )
            tile_join(
                layer.wide_join if is_wide else layer.narrow_join,
                (seen_at + row * 8, totals + row * head_dim * 4, piece_seen, piece_totals),
            )
            row += rows

    for index in range(num_tokens):
        token, row = tokens[index], index * num_queries
        seen, total = seen_at + row * 8, totals + row * head_dim * 4
        if item[ITEM_PART] != WHOLE:
            first_part = int64s(model.parts + (layer.group * model.num_tokens + token) * 16, 1)[0]
            partial = head_partial(model, layer, first_part + item[ITEM_PART], kv_head)
            copy_words(seen, partial, 2 * num_queries)
            copy_words(total, partial + seen_bytes(num_queries), num_queries * head_dim)
            continue
        output = model.attention + (token * layer.num_heads + kv_head * num_queries) * head_dim * 4
        for query in range(num_queries):
            offset = query * head_dim * 4
            finish_row(
                float32s(seen + query * 8, 2),
                float32s(total + offset, head_dim),
                float32s(output + offset, head_dim),
            )


@inner
def first_piece(position, window):
    """The first piece that a token at ``position`` sees."""
    return max(position + 1 - window, 0) // PIECE_SLOTS if window > 0 else 0


@inner
def head_partial(model, layer, part, kv_head):
    """Where a part of a token's context lies, of the query heads that read one KV head.

    [queries] pairs (largest score, sum of weights), then the sums of values [queries][head_dim].
    """
    num_queries = layer.num_heads // layer.num_kv_heads
    num_bytes = seen_bytes(num_queries) + num_queries * layer.head_dim * 4
    return model.partials + (part * layer.num_kv_heads + kv_head) * num_bytes


@inner
def finish_row(seen, total, output):
    """From sums to an average."""
    inverse = np.float32(1) / seen[1]
    for i in range(len(output)):
        output[i] = total[i] * inverse
