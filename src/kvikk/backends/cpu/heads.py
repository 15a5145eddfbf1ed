"""From projections to queries as attention reads them, and to keys and values in blocks."""

import numpy as np

from kvikk.backends.cpu.attention_rows import prepare_head, store_key_value, store_query
from kvikk.backends.cpu.jit import inner
from kvikk.backends.cpu.panels import share_panels
from kvikk.backends.cpu.raw import int32s, int64s
from kvikk.backends.cpu.rows import norm_row, sum_rows
from kvikk.backends.cpu.threads import share

# Of the type of what else is given in its place: a plain 0 would have a function compiled anew.
NONE = np.int64(0)


@inner
def _projected(model, layer, token, head, num_heads, norm, row):
    """The address of some heads of a token's projections, with their bias and their common norm.

    They are copied to ``row`` if there is anything to do.
    """
    offset, width = head * layer.head_dim * 4, num_heads * layer.head_dim
    source = model.projections + token * model.projection_width * 4 + offset
    if layer.projection_bias != 0:
        sum_rows(source, layer.projection_bias + offset, width, row)
        source = row
    if norm != 0:
        norm_row(model, source, norm, width, width, row)
        source = row
    return source


@inner
def make_queries(model, layer, thread, num_threads, alone, queries, row, scratch):
    """Queries are normed, rotated and scaled."""
    head_bytes = layer.head_dim * 4
    # 2**x is cheaper than e**x: the logarithm of e goes into the scale.
    scale = np.float32(layer.score_scale * 1.4426950408889634)
    query_bytes = layer.head_dim * (2 if layer.bfloats != 0 else 4)
    num_heads, norm = layer.num_heads, layer.all_queries_norm
    first, end = (0, 1) if alone else share_panels(model.num_tokens, thread, num_threads)
    for token in range(first, end):
        heads = _projected(model, layer, token, NONE, num_heads, norm, row)
        for head in range(num_heads):
            out = queries + (token * num_heads + head) * query_bytes
            prepare_head(model, layer, token, heads + head * head_bytes, layer.query_norm, scratch)
            store_query(layer, scratch, scale, out)


@inner
def store_shared(model, layer, group, thread, num_threads, row, scratch):
    """Keys and values go to their blocks.

    They are shared out by runs of tokens that lie in one sub-block: two threads never write to the
    same.
    """
    runs = int64s(model.runs, model.num_runs + 1)
    first, end = share(model.num_runs, thread, num_threads)
    for token in range(runs[first], runs[end]):
        store_heads(model, layer, group, token, NONE, layer.num_kv_heads, row, scratch)


@inner
def store_heads(model, layer, group, token, first_head, end_head, row, scratch):
    """One token's keys and values of some KV heads go to its block."""
    num_heads, num_kv_heads = layer.num_heads, layer.num_kv_heads
    head_bytes = layer.head_dim * 4
    position = np.int64(int32s(model.positions, model.num_tokens)[token])
    sequence = np.int64(int32s(model.sequences, model.num_tokens)[token])
    value_row = row + num_kv_heads * head_bytes
    keys = _projected(model, layer, token, num_heads, num_kv_heads, layer.all_keys_norm, row)
    first_value = num_heads + num_kv_heads
    values = _projected(model, layer, token, first_value, num_kv_heads, NONE, value_row)
    table = int32s(group.tables + sequence * group.table_columns * 4, group.table_columns)
    block_size = layer.sub_blocks * 16
    block, slot = np.int64(table[position // block_size]), position % block_size
    for kv_head in range(first_head, end_head):
        key, value = keys + kv_head * head_bytes, values + kv_head * head_bytes
        prepare_head(model, layer, token, key, layer.key_norm, scratch)
        store_key_value(layer, block, slot, kv_head, scratch, value)
