"""A mixture of experts: each token goes through a few of many feed-forward networks.

The router's product is a phase like any other; what follows is this kernel, which all threads walk
together. A *pair* is a token and one of the experts that it uses; pairs are put in the order of
their experts, so that an expert's tokens lie side by side and share each load of its weights:

    tokens               t0: e1 e4    t1: e4 e5    t2: e1 e5
    pairs                [ t0 t2 | t0 t1 | t1 t2 ]
    expert               [   1   |   4   |   5   ]      starts 0, 0, 2, 2, 2, 4, 6 …

A token's sum runs over its experts in the order of their numbers, whoever else is in the step, and
a row of a product does not depend on the rows beside it: the bits stay the same.
"""

import numpy as np

from kvikk.backends.cpu.curves import exp2
from kvikk.backends.cpu.jit import inner, pointer_call
from kvikk.backends.cpu.panels import LANE_SCALE_BYTES, MAX_UNUSED_LANES
from kvikk.backends.cpu.raw import clear_words, float32s, int64s, records
from kvikk.backends.cpu.records import JOB, MIXTURE, MODEL, PHASE
from kvikk.backends.cpu.rows import put_inputs
from kvikk.backends.cpu.threads import atomic_add, share, wait_for_all

_multiply = pointer_call(10, num_facts=1)
_LOG2_E = np.float32(1.4426950408889634)


@inner
def _choose(mixture, logits, row):
    """A row's experts in the order of their numbers, and their shares."""
    num_experts, num_used = mixture.num_experts, mixture.num_used
    scores = float32s(logits, num_experts)
    chosen = int64s(mixture.chosen + row * num_used * 8, num_used)
    shares = float32s(mixture.shares + row * num_used * 4, num_used)
    largest, total = scores[0], np.float32(0)
    for expert in range(1, num_experts):
        largest = max(largest, scores[expert])
    for expert in range(num_experts):
        total += exp2((scores[expert] - largest) * _LOG2_E)
    for index in range(num_used):
        best = np.int64(-1)
        for expert in range(num_experts):
            is_taken = False
            for other in range(index):
                is_taken |= chosen[other] == expert
            if not is_taken and (best < 0 or scores[expert] > scores[best]):
                best = np.int64(expert)
        chosen[index] = best
    for index in range(1, num_used):
        expert, place = chosen[index], index
        while place > 0 and chosen[place - 1] > expert:
            chosen[place] = chosen[place - 1]
            place -= 1
        chosen[place] = expert
    used = np.float32(0)
    for index in range(num_used):
        shares[index] = exp2((scores[chosen[index]] - largest) * _LOG2_E)
        used += shares[index]
    whole = used if mixture.is_renormalised != 0 else total
    for index in range(num_used):
        shares[index] /= whole


@inner
def _group_pairs(mixture, num_rows):
    """Put the pairs in order: where each expert's begin, whose they are, and where a token's lie.

    Returns how many experts have any.
    """
    num_experts, num_pairs = mixture.num_experts, num_rows * mixture.num_used
    starts, active = int64s(mixture.starts, num_experts + 1), int64s(mixture.active, num_experts)
    chosen, places = int64s(mixture.chosen, num_pairs), int64s(mixture.places, num_pairs)
    members = int64s(mixture.members, num_pairs)
    for expert in range(num_experts + 1):
        starts[expert] = 0
    for pair in range(num_pairs):
        starts[chosen[pair]] += 1
    num_active, before = 0, np.int64(0)
    for expert in range(num_experts):
        count = starts[expert]
        if count > 0:
            active[num_active] = expert
            num_active += 1
        starts[expert] = before
        before += count
    # Filling an expert's pairs moves its start to the next one's; that is put right behind it.
    for pair in range(num_pairs):
        place = starts[chosen[pair]]
        starts[chosen[pair]] = place + 1
        places[pair], members[place] = place, pair
    for expert in range(num_experts, 0, -1):
        starts[expert] = starts[expert - 1]
    starts[0] = 0
    return num_active


@inner
def _put_pairs(model, mixture, phase, rows, row_bytes, is_by_pair, first, end, panel_rows):
    """Inputs of pairs first … end - 1: each from its own row, or from its token's."""
    num_used = mixture.num_used
    starts = int64s(mixture.starts, mixture.num_experts + 1)
    members, chosen = int64s(mixture.members, end), int64s(mixture.chosen, 0)
    width = phase.width
    for place in range(first, end):
        member = members[place]
        chosen = int64s(mixture.chosen + member * 8, 1)
        expert = chosen[0]
        start, count = starts[expert], starts[expert + 1] - starts[expert]
        lane = start + expert * MAX_UNUSED_LANES
        row = rows + (place if is_by_pair else member // num_used) * row_bytes
        own = (first - start, end - start)
        to = (
            mixture.integers + lane * width,
            mixture.scales + lane * (width // 32) * LANE_SCALE_BYTES,
            mixture.dense + start * width * 4,
        )
        put_inputs(model, phase, row, place - start, count, own, panel_rows, to)


@inner
def _multiply_pairs(mixture, job, phase, expert_bytes, counter, num_active):
    """Take chunks of experts' matrices until none is left."""
    starts = int64s(mixture.starts, mixture.num_experts + 1)
    active = int64s(mixture.active, mixture.num_experts)
    chunks = (job.row_tiles + job.chunk - 1) // job.chunk
    width = phase.width
    task = atomic_add(counter, 1)
    while task < num_active * chunks:
        expert, first = active[task // chunks], task % chunks * job.chunk
        start, count = starts[expert], starts[expert + 1] - starts[expert]
        lane = start + expert * MAX_UNUSED_LANES
        integers, dense = mixture.integers + lane * width, mixture.dense + start * width * 4
        _multiply(
            job.multiply,
            (
                job.weights + expert * expert_bytes,
                job.groups,
                first,
                min(first + job.chunk, job.row_tiles),
                dense if job.dense != 0 else integers,
                mixture.scales + lane * (width // 32) * LANE_SCALE_BYTES,
                count,
                job.outputs + start * job.output_bytes,
                job.output_bytes,
                np.int64(0),
            ),
        )
        task = atomic_add(counter, 1)


@inner
def _add_up(mixture, row, outputs, row_bytes, out, width):
    """A token's sum over its experts."""
    num_used = mixture.num_used
    places = int64s(mixture.places + row * num_used * 8, num_used)
    shares = float32s(mixture.shares + row * num_used * 4, num_used)
    clear_words(out, width)
    total = float32s(out, width)
    for index in range(num_used):
        values, share = float32s(outputs + places[index] * row_bytes, width), shares[index]
        for i in range(width):
            total[i] += share * values[i]


def run_mixture(model_at, mixture_at, num_rows, thread, num_threads, arrivals):
    """From the router's results and the rows it was given to what all experts make of them.

    Logits lie in the model's ``feed_forward``, inputs in the mixture's ``rows``; sums go to the
    model's ``delta``. Returns the arrivals at barriers so far.
    """
    model, mixture = records(model_at, 1, MODEL)[0], records(mixture_at, 1, MIXTURE)[0]
    first, end = share(num_rows, thread, num_threads)
    for row in range(first, end):
        _choose(mixture, model.feed_forward + row * model.feed_forward_bytes, row)
    arrivals += num_threads
    wait_for_all(model.meeting, arrivals)
    num_active = int64s(mixture.active + mixture.num_experts * 8, 1)
    if thread == 0:
        num_active[0] = _group_pairs(mixture, num_rows)
    arrivals += num_threads
    wait_for_all(model.meeting, arrivals)

    num_pairs = num_rows * mixture.num_used
    first_pair, end_pair = share(num_pairs, thread, num_threads)
    panel_rows = model.private + thread * model.private_bytes + model.private_panel
    rows, row_bytes = mixture.rows, model.hidden_width * 4
    for step in range(2):
        is_down = step == 1
        job_at = mixture.down_job if is_down else mixture.gate_up_job
        phase_at = mixture.down_phase if is_down else mixture.gate_up_phase
        expert_bytes = mixture.down_bytes if is_down else mixture.gate_up_bytes
        counter = mixture.down_counter if is_down else mixture.gate_up_counter
        job, phase = records(job_at, 1, JOB)[0], records(phase_at, 1, PHASE)[0]
        _put_pairs(
            model, mixture, phase, rows, row_bytes, is_down, first_pair, end_pair, panel_rows
        )
        arrivals += num_threads
        wait_for_all(model.meeting, arrivals)
        _multiply_pairs(mixture, job, phase, expert_bytes, counter, num_active[0])
        arrivals += num_threads
        wait_for_all(model.meeting, arrivals)
        rows, row_bytes = job.outputs, job.output_bytes

    for row in range(first, end):
        out = model.delta + row * model.hidden_width * 4
        _add_up(mixture, row, rows, row_bytes, out, model.hidden_width)
    arrivals += num_threads
    wait_for_all(model.meeting, arrivals)
    return arrivals
