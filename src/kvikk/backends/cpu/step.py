"""One step of the whole model, walked by all threads together.

Every thread runs ``walk`` from the embedding to the logits; between two parts that read each
other's results stands a barrier. A layer has four phases of matrix products, each of them

    inputs of every token ── barrier ── products ── barrier

and after the first, queries, keys and values are made ready, and attention runs. What is done token
by token is shared out by tokens, products by chunks of row tiles, attention by items; the last two
are taken from a counter, so that a thread that was interrupted holds nobody up for long.

A step of one token has nothing to share out in the first kind: every thread does it for itself, in
its own buffers, which saves a barrier a phase; its keys and values are stored by the threads that
first read them, which saves another. In the last layer only keys and values of all tokens
are needed; from there on the rows of a step are the wanted ones. Neither changes any bits.
"""

import numpy as np
from numba import int64, prange

from kvikk.backends.cpu.attention import PIECE_SLOTS, attend
from kvikk.backends.cpu.attention_rows import attention_row
from kvikk.backends.cpu.curves import cap_row
from kvikk.backends.cpu.fetching import forget_fetches
from kvikk.backends.cpu.greedy import choose_greedily, forget_candidates
from kvikk.backends.cpu.heads import NONE, make_queries, store_heads, store_shared
from kvikk.backends.cpu.jit import entry, inner, pointer_call, table_of
from kvikk.backends.cpu.panels import PANEL_TOKENS, share_panels
from kvikk.backends.cpu.products import crosses_cores, most_parts, run_products
from kvikk.backends.cpu.raw import (
    ask_for,
    clear_words,
    copy_words,
    float32s,
    int32s,
    int64s,
    records,
)
from kvikk.backends.cpu.records import (
    ACTIVATED,
    ATTENTION_OUTPUT,
    DOWN,
    GATE_UP,
    GROUP,
    ITEM_FIELDS,
    ITEM_PIECE_END,
    ITEM_WANTED,
    JOB,
    LAYER,
    MODEL,
    PHASE,
    PHASES_PER_LAYER,
    QUERY_KEY_VALUE,
    ROTATION,
)
from kvikk.backends.cpu.rough import put_apart
from kvikk.backends.cpu.rows import (
    activate_row,
    add_row,
    embed_row,
    norm_row,
    put_inputs,
    sum_rows,
    turn_angles,
)
from kvikk.backends.cpu.threads import (
    MEETING_BYTES,
    atomic_add,
    join_team,
    share,
    wait_for_all,
)

_run_mixture = pointer_call(6)
_bring_down = pointer_call(5)
_add_up = pointer_call(10)
_call_walk = pointer_call(7)
_settle = pointer_call(4)


@inner
def _inputs(model, layers, groups, number, row_number, token, hidden, row, scratch):
    """The address of one token's inputs to phase ``number``, made where they must be.

    ``row_number`` is the token's place among the rows of the phase before, whose results it takes.
    """
    index, kind = number // PHASES_PER_LAYER, number % PHASES_PER_LAYER
    if kind == ATTENTION_OUTPUT:
        layer = layers[index]
        return attention_row(model, layer, token, row, scratch)
    if kind == DOWN:
        layer = layers[index]
        offset = row_number * model.feed_forward_bytes
        gates = model.feed_forward + offset
        if layer.activation == ACTIVATED:
            return gates
        ups = layer.up_projections + offset if layer.up_projections != 0 else np.int64(0)
        activate_row(layer, gates, ups, row)
        return row
    # Before attention, before the feed-forward network, and before the head: add what came last to
    # the hidden state, and norm it.
    post_norm = bias = np.int64(0)
    if kind == GATE_UP:
        norm, post_norm = layers[index].feed_forward_norm, layers[index].attention_post_norm
        bias = layers[index].output_bias
    else:
        norm = layers[index].attention_norm if index < model.num_layers else model.final_norm
        if index > 0:
            post_norm = layers[index - 1].feed_forward_post_norm
            bias = layers[index - 1].down_bias
    size, width = model.hidden_size, model.hidden_width
    x = hidden + token * width * 4
    if number > 0:
        source = model.delta + row_number * width * 4
        if bias != 0:
            sum_rows(source, bias, width, row)
            source = row
        if post_norm != 0:
            norm_row(model, source, post_norm, size, width, row)
            source = row
        add_row(source, x, width)
    if norm == 0:
        return x
    norm_row(model, x, norm, size, width, row)
    return row


@inner
def _ask_for_results(model, kind, first, end):
    """Have rows first … end - 1 of the phase before brought to this core, for one of ``kind``."""
    results, row_bytes = model.delta, model.hidden_width * 4
    if kind == DOWN:
        results, row_bytes = model.feed_forward, model.feed_forward_bytes
    if kind != ATTENTION_OUTPUT:  # whoever attends to a row mostly takes its inputs too
        ask_for(results + first * row_bytes, (end - first) * row_bytes)


@inner
def _attend_items(
    model, layers, groups, index, is_last, stores, queries, row, scratch, thread, num_threads
):
    """Take attention items of layer ``index`` until none is left.

    In the last layer those that no logits depend on are left out. Where the step's only token is
    yet to be stored, that is done by whoever looks at it: nobody else reads it.
    """
    layer = layers[index]
    group = groups[layer.group]
    counters = (
        model.counters + (model.num_counters - model.num_layers + index) * model.counter_bytes
    )
    num_parts = most_parts(num_threads)
    own_part = num_parts - 1 - thread * num_parts // num_threads  # the last tokens' come first
    last_piece = np.int64(int32s(model.positions, 1)[0]) // PIECE_SLOTS  # of a step of one token
    for turn in range(num_parts):
        part = (own_part + turn) % num_parts
        start, end = share(group.num_items, part, num_parts)
        if start == end:
            continue
        task = atomic_add(counters + part * 8, 1)
        while task < (end - start) * layer.num_kv_heads:
            number, kv_head = start + task % (end - start), task // (end - start)
            item = int64s(group.items + number * ITEM_FIELDS * 8, ITEM_FIELDS)
            if stores and item[ITEM_PIECE_END] > last_piece:
                store_heads(model, layer, group, NONE, kv_head, kv_head + 1, row, scratch)
            if item[ITEM_WANTED] or not is_last:
                attend(model, layer, group, queries, item, kv_head, scratch)
            task = atomic_add(counters + part * 8, 1)


@inner
def _cap_logits(model, job, thread, num_threads):
    """Bend all logits, which the last product wrote, to stay below the model's cap."""
    first, end = share(job.row_tiles, thread, num_threads)
    for row_number in range(model.num_logits):
        address = job.outputs + row_number * job.output_bytes + first * 64
        cap_row(float32s(address, (end - first) * 16), np.float32(model.logit_cap))


@inner
def _keep_hidden(model, inputs, row_number, is_first):
    """A wanted row's last hidden state to where those go; its place among the rows with logits."""
    hidden = np.int64(int32s(model.hidden_places, model.num_wanted)[row_number])
    if hidden >= 0 and is_first:
        width = model.hidden_width
        copy_words(inputs, model.hidden_states + hidden * width * 4, width)
    return np.int64(int32s(model.logits_places, model.num_wanted)[row_number])


def walk(num_asked, model_at, layers_at, phases_at, jobs_at, groups_at, rotations_at):
    """One thread's way through a step of ``num_asked`` threads. See ``run_step``."""
    model = records(model_at, 1, MODEL)[0]
    last_phase = PHASES_PER_LAYER * model.num_layers
    layers = records(layers_at, model.num_layers, LAYER)
    phases = records(phases_at, last_phase + 2, PHASE)
    jobs = records(jobs_at, phases[last_phase].end_job + 1, JOB)
    groups = records(groups_at, model.num_groups, GROUP)
    rotations = records(rotations_at, model.num_rotations, ROTATION)
    thread, num_threads = join_team(model.meeting, num_asked)
    if thread < 0:
        return np.int64(0)
    arrivals = 0
    num_tokens = model.num_tokens
    alone = num_tokens == 1
    own = model.private + thread * model.private_bytes
    hidden = own if alone else model.hidden
    integers = own + model.private_integers if alone else model.integers
    scales = own + model.private_scales if alone else model.scales
    dense = own + model.private_dense if alone else model.dense
    queries = own + model.private_queries if alone else model.queries
    own_rows, scratch = own + model.private_rows, own + model.private_attention
    panel_rows, fetches = own + model.private_panel, own + model.private_fetches
    forget_fetches(fetches)

    token_ids, positions = (
        int32s(model.token_ids, num_tokens),
        int32s(model.positions, num_tokens),
    )
    wanted_rows = int32s(model.wanted_rows, model.num_wanted)
    first, end = (0, 1) if alone else share_panels(num_tokens, thread, num_threads)
    for token in range(first, end):
        embed_row(
            model,
            np.int64(token_ids[token]),
            np.int64(positions[token]),
            hidden + token * model.hidden_width * 4,
        )
    first, end = share(num_tokens, thread, num_threads)
    for index in range(model.num_rotations):
        for token in range(first, end):
            turn_angles(model, rotations[index], token)

    candidates = np.int64(0), model.vocabulary_size
    # The rows of a phase are all tokens, and after the last layer's attention the wanted ones.
    num_rows, before_few = num_tokens, PHASES_PER_LAYER * (model.num_layers - 1)
    for number in range(last_phase + 1):
        index, kind = number // PHASES_PER_LAYER, number % PHASES_PER_LAYER
        if kind == DOWN and layers[index].mixture != 0:
            continue  # the experts have their own
        is_rough = number == last_phase and model.is_rough != 0
        phase = phases[number + (1 if is_rough else 0)]  # the rough head comes last
        is_few = number > before_few
        if is_few:
            num_rows = model.num_wanted
        first, end = (0, num_rows) if alone else share_panels(num_rows, thread, num_threads)
        if crosses_cores(num_rows, num_threads):
            _ask_for_results(model, kind, first, end)
        for row_number in range(first, end):
            token = np.int64(wanted_rows[row_number]) if is_few else row_number
            row = own_rows + row_number % PANEL_TOKENS * model.row_bytes
            inputs = _inputs(model, layers, groups, number, row_number, token, hidden, row, scratch)
            if kind == GATE_UP and layers[index].mixture != 0 and (not alone or thread == 0):
                rows, width = layers[index].mixture_rows, model.hidden_width
                copy_words(inputs, rows + row_number * width * 4, width)
            if model.adapters != 0:
                own_place = model.adapter_rows + thread if alone else row_number
                _bring_down(
                    model.bring_down,
                    (model_at, np.int64(number), token, own_place, inputs),
                )
            place, num_places = row_number, num_rows
            if model.hidden_states != 0 and number == last_phase:
                place = _keep_hidden(model, inputs, row_number, not alone or thread == 0)
                num_places = model.num_logits
            if place >= 0:
                own, to = (first, end), (integers, scales, dense)
                put_inputs(model, phase, inputs, place, num_places, own, panel_rows, to)
                if is_rough:
                    put_apart(model, inputs, place, phase.width)
        if not alone:
            arrivals += num_threads
            wait_for_all(model.meeting, arrivals)
        if number == last_phase:
            num_rows = model.num_logits
            if num_rows == 0:
                return np.int64(0)
            if model.logit_cap == 0 and num_rows <= model.max_choices and not is_rough:
                noted = model.private + thread * model.private_bytes + model.private_candidates
                forget_candidates(noted, num_rows)
                candidates = noted, model.vocabulary_size
        num_inputs = num_rows * phase.parts
        if model.only_bare == 0 or kind != GATE_UP:
            run_products(
                model,
                layers,
                groups,
                phase,
                jobs,
                (integers, scales, dense),
                num_inputs,
                candidates,
                fetches,
                thread,
                num_threads,
            )
        arrivals += num_threads
        wait_for_all(model.meeting, arrivals)
        if model.adapters != 0:
            arrivals = _add_up(
                model.add_up,
                (
                    model_at,
                    np.int64(number),
                    num_rows,
                    np.int64(is_few),
                    thread,
                    num_threads,
                    arrivals,
                    integers,
                    scales,
                    dense,
                ),
            )

        if kind == GATE_UP and layers[index].mixture != 0:
            arrivals = _run_mixture(
                layers[index].run_mixture,
                (
                    model_at,
                    layers[index].mixture,
                    num_rows,
                    thread,
                    num_threads,
                    arrivals,
                ),
            )
        if kind == QUERY_KEY_VALUE and number <= before_few:
            layer = layers[index]
            group = groups[layer.group]
            if crosses_cores(num_rows, num_threads):
                row_bytes = model.projection_width * 4
                ask_for(model.projections + first * row_bytes, (end - first) * row_bytes)
            make_queries(model, layer, thread, num_threads, alone, queries, own_rows, scratch)
            stores_later = alone and model.num_wanted > 0
            if not stores_later:
                store_shared(model, layer, group, thread, num_threads, own_rows, scratch)
                if number == before_few and model.num_wanted == 0:
                    return np.int64(0)
                arrivals += num_threads
                wait_for_all(model.meeting, arrivals)
            _attend_items(
                model,
                layers,
                groups,
                index,
                number == before_few,
                stores_later,
                queries,
                own_rows,
                scratch,
                thread,
                num_threads,
            )
            arrivals += num_threads
            wait_for_all(model.meeting, arrivals)

    if is_rough:
        _settle(model.settle, (model_at, num_rows, thread, num_threads))
    if thread == 0 and candidates[0] != 0:
        own_candidates, each = model.private + model.private_candidates, model.private_bytes
        choose_greedily(own_candidates, each, num_threads, num_rows, model.choices)
    if model.logit_cap != 0:
        _cap_logits(model, jobs[phase.first_job], thread, num_threads)
    return np.int64(0)


# The types of the arguments of ``walk``, and of ``run_step``.
WALK_TYPES = (int64,) * 7
STEP_TYPES = (int64, *map(table_of, (MODEL, LAYER, PHASE, JOB, GROUP, ROTATION)))


@entry(parallel=True)
def run_step(num_threads, model, layers, phases, jobs, groups, rotations):
    """One step, by up to ``num_threads`` threads. The tables are those of ``records``.

    ``walk`` is called by its address: else numba would take it through LLVM three times.
    """
    clear_words(model[0].meeting, MEETING_BYTES // 4)
    tables = (
        model.ctypes.data,
        layers.ctypes.data,
        phases.ctypes.data,
        jobs.ctypes.data,
        groups.ctypes.data,
        rotations.ctypes.data,
    )
    for _ in prange(num_threads):
        _call_walk(model[0].walk, (np.int64(num_threads), *tables))
