"""Around attention: heads are normed and rotated, keys and values stored, pieces joined."""

import numpy as np

from kvikk.backends.cpu.attention import (
    NOTHING_SEEN,
    SUB_BLOCK_SLOTS,
    finish_row,
    head_partial,
    seen_bytes,
    tile_join,
)
from kvikk.backends.cpu.codes_plain import bfloat_of_float
from kvikk.backends.cpu.jit import inner, pointer_call
from kvikk.backends.cpu.raw import clear_words, copy_words, float32s, int64s, uint16s, uint32s
from kvikk.backends.cpu.records import WHOLE
from kvikk.backends.cpu.rows import norm_row

_store_codes = pointer_call(5, num_facts=1)


@inner
def prepare_head(model, layer, token, source, norm, out):
    """One head's vector from ``source`` to ``out``, normed if there is a norm, and rotated.

    Element i turns with element i + rotated / 2.
    """
    if norm != 0:
        normed = out + layer.head_dim * 4
        norm_row(model, source, norm, layer.head_dim, layer.head_dim, normed)
        source = normed
    half, rest = layer.rotated // 2, layer.head_dim - layer.rotated
    turns = layer.rotations + token * layer.rotation_bytes
    cosines, sines = float32s(turns, half), float32s(turns + 4 * half, half)
    first, second = float32s(source, half), float32s(source + 4 * half, half)
    turned_first, turned_second = float32s(out, half), float32s(out + 4 * half, half)
    for i in range(half):
        x, y = first[i], second[i]
        turned_first[i] = x * cosines[i] - y * sines[i]
        turned_second[i] = y * cosines[i] + x * sines[i]
    copy_words(source + layer.rotated * 4, out + layer.rotated * 4, rest)


@inner
def store_query(layer, values, scale, out):
    """A query head, scaled: in bfloat16 where the blocks are, else in float32."""
    inputs = float32s(values, layer.head_dim)
    if layer.bfloats != 0:
        halves = uint16s(out, layer.head_dim)
        for i in range(layer.head_dim):
            halves[i] = bfloat_of_float(inputs[i] * scale)
    else:
        singles = float32s(out, layer.head_dim)
        for i in range(layer.head_dim):
            singles[i] = inputs[i] * scale


@inner
def store_key_value(layer, block, slot, kv_head, key, value):
    """One token's key and value into slot ``slot`` of a block. See ``attention`` for the layout.

    The first token of a sub-block clears the rest of it: what another sequence left there is
    weighed with zero, but zero times infinity would not be zero.
    """
    sub_block, lane = slot // SUB_BLOCK_SLOTS, slot % SUB_BLOCK_SLOTS
    keys = layer.keys + block * layer.block_bytes + kv_head * layer.head_bytes
    keys += sub_block * layer.sub_block_bytes
    values = keys + layer.value_offset
    head_dim = layer.head_dim
    if lane == 0:
        clear_words(keys, layer.sub_block_bytes // 4)
        clear_words(values, layer.sub_block_bytes // 4)
    if layer.store_codes != 0:
        _store_codes(layer.store_codes, (keys, values, lane, key, value))
        return
    key_row, value_row = float32s(key, head_dim), float32s(value, head_dim)
    if layer.bfloats != 0:
        key_words = uint32s(keys, SUB_BLOCK_SLOTS * head_dim // 2)
        for pair in range(head_dim // 2):
            lower = np.uint32(bfloat_of_float(key_row[2 * pair]))
            upper = np.uint32(bfloat_of_float(key_row[2 * pair + 1]))
            key_words[pair * SUB_BLOCK_SLOTS + lane] = lower | upper << np.uint32(16)
        # A value shares its words with the slot beside it.
        value_words = uint32s(values + lane // 2 * head_dim * 4, head_dim)
        shift = np.uint32(lane % 2 * 16)
        others = np.uint32(0xFFFF0000) >> shift
        for i in range(head_dim):
            value_words[i] = (
                value_words[i] & others | np.uint32(bfloat_of_float(value_row[i])) << shift
            )
    else:
        key_singles = float32s(keys, SUB_BLOCK_SLOTS * head_dim)
        copy_words(value, values + lane * head_dim * 4, head_dim)
        for i in range(head_dim):
            key_singles[i * SUB_BLOCK_SLOTS + lane] = key_row[i]


@inner
def attention_row(model, layer, token, row, scratch):
    """The address of a token's finished attention row; parts of it are joined first, in ``row``."""
    width = layer.num_heads * layer.head_dim
    parts = int64s(model.parts + (layer.group * model.num_tokens + token) * 16, 2)
    first_part, num_parts = parts[0], parts[1]
    if num_parts == WHOLE:
        return model.attention + token * width * 4
    num_queries, head_bytes = layer.num_heads // layer.num_kv_heads, layer.head_dim * 4
    clear_words(row, width)
    for head in range(layer.num_heads):
        seen = float32s(scratch + head * 8, 2)
        seen[0], seen[1] = NOTHING_SEEN, np.float32(0)
    for part in range(first_part, first_part + num_parts):
        for head in range(0, layer.num_heads, layer.narrow_rows):
            query = head % num_queries
            partial = head_partial(model, layer, part, head // num_queries)
            part_totals = partial + seen_bytes(num_queries) + query * head_bytes
            tile_join(
                layer.narrow_join,
                (
                    scratch + head * 8,
                    row + head * head_bytes,
                    partial + query * 8,
                    part_totals,
                ),
            )
    for head in range(layer.num_heads):
        output = float32s(row + head * head_bytes, layer.head_dim)
        finish_row(float32s(scratch + head * 8, 2), output, output)
    return row
