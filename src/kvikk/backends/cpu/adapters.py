"""What adapters add to matrix products, row by row of a step.

A row's inputs x are brought down to A x where they are made; once the phase's products stand, B A x
is added to them. Both are products of dense tiles by a row alone: what a sequence gets cannot
depend on who else is in the step.

A product that applies gate and activation itself has nothing that could be added to. Its tiles are
those of gate and up in turn, so the plain product of the same weights gives both, bare; what it
gives is used for the rows whose adapter changes gate or up, and the others keep what they had. A
step in which all rows have such adapters does without the first product.

    weights    [ gate 0 ][ up 0 ][ gate 1 ][ up 1 ] …        tiles of 16 rows
    bare       [ gate 0 … 15 | up 0 … 15 | gate 16 … ]       a row of the step
"""

import numpy as np

from kvikk.backends.cpu.curves import gelu_tanh, silu
from kvikk.backends.cpu.jit import inner, pointer_call
from kvikk.backends.cpu.panels import LANE_SCALE_BYTES, PANEL_TOKENS
from kvikk.backends.cpu.raw import clear_words, float32s, int32s, int64s, records
from kvikk.backends.cpu.records import (
    ADAPTER,
    BARE,
    DELTA,
    GATE_UP,
    MODEL,
    PHASES_PER_LAYER,
    SILU,
)
from kvikk.backends.cpu.threads import atomic_add, wait_for_all

_multiply = pointer_call(10, num_facts=1)


@inner
def _adapter_at(model, row, is_few):
    """The address of the adapter of a phase's row; 0 where it has none."""
    token = np.int64(int32s(model.wanted_rows, row + 1)[row]) if is_few != 0 else row
    return int64s(model.adapters, model.num_tokens)[token]


@inner
def _num_deltas(adapter_at, number):
    """How many matrices of phase ``number`` an adapter adds to."""
    if adapter_at == 0:
        return np.int64(0)
    starts = int64s(records(adapter_at, 1, ADAPTER)[0].starts + 8 * number, 2)
    return starts[1] - starts[0]


def bring_down(model_at, number, token, place, inputs):
    """A x of each matrix of the phase that the token's adapter adds to, kept at ``place``."""
    model = records(model_at, 1, MODEL)[0]
    adapter_at = int64s(model.adapters, model.num_tokens)[token]
    if adapter_at == 0:
        return np.int64(0)
    adapter = records(adapter_at, 1, ADAPTER)[0]
    starts = int64s(adapter.starts + 8 * number, 2)
    deltas = records(adapter.deltas, starts[1], DELTA)
    out = model.brought_down + place * model.brought_down_bytes
    for index in range(starts[0], starts[1]):
        delta = deltas[index]
        clear_words(out, 32 * delta.b_groups)  # a tile may be less than a group
        _multiply(
            model.multiply_dense,
            (delta.a, delta.a_groups, 0, delta.a_tiles, inputs, 0, 1, out, 64 * delta.a_tiles, 0),
        )
        out += 128 * delta.b_groups
    return np.int64(0)


@inner
def _changed_rows(model, number, num_rows, is_few):
    """The first row that an adapter adds to in this phase, and one beyond the last; or 0, 0."""
    first, end = np.int64(0), np.int64(0)
    for row in range(num_rows):
        if _num_deltas(_adapter_at(model, row, is_few), number) > 0:
            first = first if end > 0 else row
            end = row + 1
    return first, end


@inner
def _run_bare(bare, first, end, num_rows, inputs_integers, inputs_scales, inputs_dense):
    """Bare gates and ups of the panels that hold rows first … end - 1."""
    width = 32 * bare.groups
    start = first // PANEL_TOKENS * PANEL_TOKENS
    stop = min((end + PANEL_TOKENS - 1) // PANEL_TOKENS * PANEL_TOKENS, num_rows)
    inputs = inputs_integers + start * width
    if bare.dense != 0:
        inputs = inputs_dense + start * width * 4
    tile = atomic_add(bare.counter, 1) * bare.chunk
    while tile < bare.row_tiles:
        _multiply(
            bare.multiply,
            (
                bare.weights,
                bare.groups,
                tile,
                min(tile + bare.chunk, bare.row_tiles),
                inputs,
                inputs_scales + start * bare.groups * LANE_SCALE_BYTES,
                stop - start,
                bare.outputs + start * bare.output_bytes,
                bare.output_bytes,
                np.int64(0),
            ),
        )
        tile = atomic_add(bare.counter, 1) * bare.chunk


@inner
def _add_to_row(model, adapter_at, number, row, place, thread, num_threads, scratch):
    """B A x, a thread's share of its tiles, to each matrix's results."""
    adapter = records(adapter_at, 1, ADAPTER)[0]
    starts = int64s(adapter.starts + 8 * number, 2)
    deltas = records(adapter.deltas, starts[1], DELTA)
    brought = model.brought_down + place * model.brought_down_bytes
    for index in range(starts[0], starts[1]):
        delta = deltas[index]
        first = delta.b_tiles * thread // num_threads
        end = delta.b_tiles * (thread + 1) // num_threads
        if first < end:
            _multiply(
                model.multiply_dense,
                (delta.b, delta.b_groups, first, end, brought, 0, 1, scratch, 0, 0),
            )
        for tile in range(first, end):
            addend = float32s(scratch + 64 * tile, 16)
            at = delta.outputs + row * delta.output_bytes + tile * delta.tile_bytes
            total = float32s(at, 16)
            for lane in range(16):
                total[lane] += addend[lane]
        brought += 128 * delta.b_groups


@inner
def _activate(model, bare, row, thread, num_threads):
    """A thread's share of ``activation(gate) * up``, from a row's bare results to its place."""
    tiles = bare.row_tiles // 2
    for tile in range(tiles * thread // num_threads, tiles * (thread + 1) // num_threads):
        both = float32s(bare.outputs + row * bare.output_bytes + 128 * tile, 32)
        out = float32s(model.feed_forward + row * model.feed_forward_bytes + 64 * tile, 16)
        for lane in range(16):
            if bare.activation == SILU:
                out[lane] = silu(both[lane]) * both[16 + lane]
            else:
                out[lane] = gelu_tanh(both[lane]) * both[16 + lane]


def add_up(
    model_at, number, num_rows, is_few, thread, num_threads, arrivals, integers, scales, dense
):
    """Add what adapters add to the results of phase ``number``. All threads walk it together.

    Returns the arrivals at barriers so far.
    """
    model = records(model_at, 1, MODEL)[0]
    first, end = _changed_rows(model, number, num_rows, is_few)
    if first == end:
        return arrivals
    bare = records(model.bares, model.num_layers, BARE)[number // PHASES_PER_LAYER]
    is_bare = number % PHASES_PER_LAYER == GATE_UP and bare.row_tiles > 0
    if is_bare:
        _run_bare(bare, first, end, num_rows, integers, scales, dense)
        arrivals += num_threads
        wait_for_all(model.meeting, arrivals)
    scratch = model.private + thread * model.private_bytes + model.private_rows
    # A step of one token is brought down by every thread for itself.
    place = model.adapter_rows + thread if model.num_tokens == 1 else np.int64(0)
    for row in range(first, end):
        adapter_at = _adapter_at(model, row, is_few)
        if _num_deltas(adapter_at, number) == 0:
            continue
        _add_to_row(model, adapter_at, number, row, place + row, thread, num_threads, scratch)
        if is_bare:
            _activate(model, bare, row, thread, num_threads)
    arrivals += num_threads
    wait_for_all(model.meeting, arrivals)
    return arrivals
