"""One step of the whole model, walked by all threads together.

Every thread runs ``_walk`` from the embedding to the logits; between two phases that read each
other's results stands a barrier. A layer of T tokens is

    add, norm, quantise │ query, key, value │ norm, rotate, store │ attend │ join, quantise │ output
    add, norm, quantise │ gate, up          │ quantise            │ down

What is done token by token is shared out by tokens, matrix products by chunks of row tiles, and
attention by items; the last two are taken from a counter, so that a thread that was interrupted holds
nobody up for long. A step of one token has nothing to share out in the first kind: every thread does
it for itself, in its own buffers, which saves half of the barriers. That changes no bits.
"""

import numpy as np
from numba import prange

from kvikk.backends.cpu.attention_rows import (
    attention_row,
    prepare_head,
    store_key_value,
    store_query,
)
from kvikk.backends.cpu.jit import entry, inner, pointer_call
from kvikk.backends.cpu.raw import int32s, int64s, records
from kvikk.backends.cpu.records import (
    ATTENTION_OUTPUT,
    DOWN,
    GATE_UP,
    GROUP,
    JOB,
    LAYER,
    MODEL,
    PHASES_PER_LAYER,
    QUERY_KEY_VALUE,
)
from kvikk.backends.cpu.rows import (
    add_row,
    embed_row,
    gate_row,
    norm_row,
    put_inputs,
    turn_angles,
)
from kvikk.backends.cpu.threads import atomic_add, atomic_load, wait_for_all

_multiply = pointer_call(9, num_facts=1)
_attend = pointer_call(7, num_facts=2)
# Counters lie a cache line apart.
COUNTER_BYTES = 64


@inner
def _run_products(model, phase, jobs, inputs_integers, inputs_scales, inputs_dense, num_tokens):
    """Take chunks of the phase's matrices until none is left."""
    for index in range(phase.first_job, phase.end_job):
        job = jobs[index]
        inputs = inputs_dense if job.dense != 0 else inputs_integers
        counter = model.counters + index * COUNTER_BYTES
        first = atomic_add(counter, 1) * job.chunk
        while first < job.row_tiles:
            last = min(first + job.chunk, job.row_tiles)
            _multiply(
                job.multiply,
                (
                    job.weights,
                    job.groups,
                    first,
                    last,
                    inputs,
                    inputs_scales,
                    num_tokens,
                    job.outputs,
                    job.output_bytes,
                ),
            )
            first = atomic_add(counter, 1) * job.chunk


@inner
def _store_heads(model, layer, group, thread, num_threads, alone, queries, scratch):
    """Queries are normed, rotated and scaled; keys and values go to their blocks.

    Keys and values are shared out by runs of tokens that lie in one sub-block: two threads never
    write to the same.
    """
    head_bytes = layer.head_dim * 4
    # 2**x is cheaper than e**x: the logarithm of e goes into the scale.
    scale = np.float32(layer.score_scale * 1.4426950408889634)
    query_bytes = layer.head_dim * (2 if layer.bfloats != 0 else 4)
    first, end = (0, 1) if alone else _share(model.num_tokens, thread, num_threads)
    for token in range(first, end):
        row = model.projections + token * model.projection_width * 4
        for head in range(layer.num_heads):
            out = queries + (token * layer.num_heads + head) * query_bytes
            prepare_head(model, layer, token, row + head * head_bytes, layer.query_norm, scratch)
            store_query(layer, scratch, scale, out)
    positions = int32s(model.positions, model.num_tokens)
    sequences = int32s(model.sequences, model.num_tokens)
    runs = int64s(model.runs, model.num_runs + 1)
    first, end = _share(model.num_runs, num_threads - 1 - thread, num_threads)
    for token in range(runs[first], runs[end]):
        row = model.projections + token * model.projection_width * 4
        row += layer.num_heads * head_bytes
        table = int32s(
            group.tables + sequences[token] * group.table_columns * 4, group.table_columns
        )
        block_size = layer.sub_blocks * 16
        block = np.int64(table[positions[token] // block_size])
        for kv_head in range(layer.num_kv_heads):
            key = row + kv_head * head_bytes
            value = key + layer.num_kv_heads * head_bytes
            prepare_head(model, layer, token, key, layer.key_norm, scratch)
            store_key_value(layer, block, positions[token] % block_size, kv_head, scratch, value)


@inner
def _share(count, thread, num_threads):
    """The part of ``count`` things that one thread does: first, end."""
    return count * thread // num_threads, count * (thread + 1) // num_threads


@inner
def _walk(thread, num_threads, model_table, layers, phases, jobs, groups, rotations, arrivals):
    model = model_table[0]
    num_tokens, width = model.num_tokens, model.hidden_width
    alone = num_tokens == 1
    own = model.private + thread * model.private_bytes
    hidden = own if alone else model.hidden
    integers = own + model.private_integers if alone else model.integers
    scales = own + model.private_scales if alone else model.scales
    dense = own + model.private_dense if alone else model.dense
    queries = own + model.private_queries if alone else model.queries
    row, scratch = own + model.private_row, own + model.private_attention
    first, end = (0, 1) if alone else _share(num_tokens, thread, num_threads)
    row_bytes = width * 4

    token_ids = int32s(model.token_ids, num_tokens)
    for token in range(first, end):
        embed_row(model, np.int64(token_ids[token]), hidden + token * row_bytes)
    turn_first, turn_end = _share(num_tokens, thread, num_threads)
    for index in range(model.num_rotations):
        for token in range(turn_first, turn_end):
            turn_angles(model, rotations[index], token)

    for index in range(model.num_layers):
        layer = layers[index]
        group = groups[layer.group]

        phase = phases[PHASES_PER_LAYER * index + QUERY_KEY_VALUE]
        for token in range(first, end):
            x = hidden + token * row_bytes
            if index > 0:
                _add_result(model, layers[index - 1].feed_forward_post_norm, token, x, row)
            norm_row(model, x, layer.attention_norm, model.hidden_size, width, row)
            put_inputs(model, phase, row, width, token, num_tokens, integers, scales, dense)
        if not alone:
            arrivals += num_threads
            wait_for_all(model.barrier, arrivals)
        _run_products(model, phase, jobs, integers, scales, dense, num_tokens)
        arrivals += num_threads
        wait_for_all(model.barrier, arrivals)

        _store_heads(model, layer, group, thread, num_threads, alone, queries, scratch)
        arrivals += num_threads
        wait_for_all(model.barrier, arrivals)

        counter = model.counters + (model.num_counters - model.num_layers + index) * COUNTER_BYTES
        item = atomic_add(counter, 1)
        while item < group.num_items * layer.num_kv_heads:
            _attend(
                layer.attend,
                (
                    model_table.ctypes.data,
                    layers[index:].ctypes.data,
                    groups[layer.group :].ctypes.data,
                    queries,
                    item % group.num_items,
                    item // group.num_items,
                    scratch,
                ),
            )
            item = atomic_add(counter, 1)
        arrivals += num_threads
        wait_for_all(model.barrier, arrivals)

        phase = phases[PHASES_PER_LAYER * index + ATTENTION_OUTPUT]
        query_width = layer.num_heads * layer.head_dim
        for token in range(first, end):
            source = attention_row(model, layer, group, token, scratch)
            put_inputs(
                model, phase, source, query_width, token, num_tokens, integers, scales, dense
            )
        if not alone:
            arrivals += num_threads
            wait_for_all(model.barrier, arrivals)
        _run_products(model, phase, jobs, integers, scales, dense, num_tokens)
        arrivals += num_threads
        wait_for_all(model.barrier, arrivals)

        phase = phases[PHASES_PER_LAYER * index + GATE_UP]
        for token in range(first, end):
            x = hidden + token * row_bytes
            _add_result(model, layer.attention_post_norm, token, x, row)
            norm_row(model, x, layer.feed_forward_norm, model.hidden_size, width, row)
            put_inputs(model, phase, row, width, token, num_tokens, integers, scales, dense)
        if not alone:
            arrivals += num_threads
            wait_for_all(model.barrier, arrivals)
        _run_products(model, phase, jobs, integers, scales, dense, num_tokens)
        arrivals += num_threads
        wait_for_all(model.barrier, arrivals)

        phase = phases[PHASES_PER_LAYER * index + DOWN]
        for token in range(first, end):
            source = model.feed_forward + token * model.feed_forward_bytes
            if layer.up_projections != 0:
                ups = layer.up_projections + token * model.feed_forward_bytes
                gate_row(layer, source, ups, layer.feed_forward_size, row)
                source = row
            put_inputs(
                model,
                phase,
                source,
                layer.feed_forward_size,
                token,
                num_tokens,
                integers,
                scales,
                dense,
            )
        if not alone:
            arrivals += num_threads
            wait_for_all(model.barrier, arrivals)
        _run_products(model, phase, jobs, integers, scales, dense, num_tokens)
        arrivals += num_threads
        wait_for_all(model.barrier, arrivals)

    phase = phases[PHASES_PER_LAYER * model.num_layers]
    num_logits = model.num_logits
    logits_rows = int32s(model.logits_rows, num_logits)
    first, end = (0, num_logits) if alone else _share(num_logits, thread, num_threads)
    for index in range(first, end):
        token = np.int64(logits_rows[index])
        x = hidden + token * row_bytes
        _add_result(model, layers[model.num_layers - 1].feed_forward_post_norm, token, x, row)
        norm_row(model, x, model.final_norm, model.hidden_size, width, row)
        put_inputs(model, phase, row, width, index, num_logits, integers, scales, dense)
    if not alone:
        arrivals += num_threads
        wait_for_all(model.barrier, arrivals)
    if num_logits > 0:
        _run_products(model, phase, jobs, integers, scales, dense, num_logits)


@inner
def _add_result(model, post_norm, token, x, row):
    """``x`` plus what the last products gave for this token, normed where the model does that."""
    source = model.delta + token * model.hidden_width * 4
    if post_norm != 0:
        norm_row(model, source, post_norm, model.hidden_size, model.hidden_width, row)
        source = row
    add_row(source, x, model.hidden_width)


@entry(parallel=True)
def run_step(num_threads, model, layers, phases, jobs, groups, rotations):
    """One step, by ``num_threads`` threads. The tables are those of ``records``."""
    arrivals = atomic_load(model[0].barrier)
    for thread in prange(num_threads):
        _walk(thread, num_threads, model, layers, phases, jobs, groups, rotations, arrivals)
