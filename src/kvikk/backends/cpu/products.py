"""The matrix products of a phase, shared out among threads by a counter.

A thread takes a chunk of row tiles at a time and multiplies it by all of the step's rows. Of many
rows it first takes a part: those whose inputs it made, and whose results it will read, so that they
stay in its core's cache. Then it helps with the others' parts.

               row tiles 0 …    … last           two threads, many rows
    part 0   [ 0 ][ 0 ][ 0 ][ 0 ]                who took the chunk: thread 1 was done first, and
    part 1   [ 1 ][ 1 ][ 1 ][ 1 ]  ──▸ part 0    would help thread 0 with what is left
"""

from kvikk.backends.cpu.fetching import choose_fetches
from kvikk.backends.cpu.jit import inner, pointer_call
from kvikk.backends.cpu.panels import share_panels
from kvikk.backends.cpu.threads import atomic_add

_multiply = pointer_call(10, num_facts=1)
# A phase's counters lie in a cache line: one for each part.
COUNTER_BYTES = 64
_MAX_PARTS = COUNTER_BYTES // 8
# Rows for each thread and each part. As parts read all weights each, this bounds what all threads
# together read: some 12 GB/s where a core makes 300 billion products and sums a second.
_ROWS_A_THREAD_AND_PART = 8


@inner
def num_parts_of(num_rows, num_threads):
    """In how many parts a step's rows are multiplied."""
    num_parts = min(num_threads, _MAX_PARTS)
    fewest_rows = _ROWS_A_THREAD_AND_PART * num_threads * num_parts
    return num_parts if num_rows >= fewest_rows else 1


@inner
def run_products(
    model,
    layers,
    groups,
    phase,
    jobs,
    inputs_integers,
    inputs_scales,
    inputs_dense,
    num_lanes,
    fetches,
    thread,
    num_threads,
):
    """Take chunks of the phase's matrices until none is left, of the own part first."""
    num_parts = num_parts_of(num_lanes if phase.parts == 1 else 0, num_threads)
    own_part = thread * num_parts // num_threads
    for index in range(phase.first_job, phase.end_job):
        job = jobs[index]
        inputs = inputs_dense if job.dense != 0 else inputs_integers
        lane_bytes = phase.width * (4 if job.dense != 0 else 1)
        for turn in range(num_parts):
            part = (own_part + turn) % num_parts
            start, end = share_panels(num_lanes, part, num_parts)
            counter = model.counters + index * COUNTER_BYTES + part * 8
            first = atomic_add(counter, 1) * job.chunk
            while first < job.row_tiles:
                last = min(first + job.chunk, job.row_tiles)
                choose_fetches(layers, groups, job, first, last, part, num_parts, fetches)
                _multiply(
                    job.multiply,
                    (
                        job.weights,
                        job.groups,
                        first,
                        last,
                        inputs + start * lane_bytes,
                        inputs_scales + start * job.groups * 16,
                        end - start,
                        job.outputs + start * job.output_bytes,
                        job.output_bytes,
                        fetches,
                    ),
                )
                first = atomic_add(counter, 1) * job.chunk
