"""The matrix products of a phase, shared out among threads.

A thread takes a chunk of row tiles at a time and multiplies it by the step's rows. It begins with
a part of the work that is its own, and helps with the others' parts when that is done.

Of many rows a part is those whose inputs the thread made, and whose results it will read, so that
they stay in its core's cache. Chunks are taken from a counter:

               row tiles 0 …    … last           two threads, many rows
    part 0   [ 0 ][ 0 ][ 0 ][ 0 ]                who took the chunk: thread 1 was done first, and
    part 1   [ 1 ][ 1 ][ 1 ][ 1 ]  ──▸ part 0    would help thread 0 with what is left

Few rows wait for the weights, and a part is neighbouring row tiles, read from the first to the last
in one stream. An atomic addition would wait until all has come that was asked for, and let memory
idle for as long as it takes to answer. So the owner only writes down what it begins, and looks at
how many chunks others have taken from the part's end; they are the ones who count:

               part 0                part 1
    tiles    [ 0 ][ 0 ][ 0 ][ 1 ]  [ 1 ][ 1 ][ 1 ][ 1 ]
                    begun ▴   ▴ taken

It may happen that both take the same chunk at the same moment. Then both write the same bits.
"""

import numpy as np

from kvikk.backends.cpu.fetching import choose_fetches
from kvikk.backends.cpu.greedy import note_candidates
from kvikk.backends.cpu.jit import inner, pointer_call
from kvikk.backends.cpu.panels import LANE_SCALE_BYTES, share_panels
from kvikk.backends.cpu.raw import ask_for
from kvikk.backends.cpu.rough import note_tops
from kvikk.backends.cpu.threads import atomic_add, atomic_load, atomic_store, share
from kvikk.backends.cpu.tiles import TILE_ROWS

_multiply = pointer_call(10, num_facts=1)
# A phase's counters lie in a cache line, one for each part; of few rows a part has its own line.
COUNTER_BYTES = 64
_TAKEN = 8
_MAX_PARTS = COUNTER_BYTES // 8
# Rows for each thread and each part. As parts read all weights each, this bounds what all threads
# together read: some 12 GB/s where a core makes 300 billion products and sums a second.
_ROWS_A_THREAD_AND_PART = 8
# So few lanes of inputs wait for memory.
_STREAMED_LANES = 4
# With more rows, what crosses between cores does not fit their nearest caches.
_MOST_CROSSING_ROWS = 64
# Chunks of a part of few rows, unless they would be too large.
_CHUNKS_A_PART = 4


@inner
def most_parts(num_threads):
    """In how many parts work is cut at most."""
    return min(num_threads, _MAX_PARTS)


@inner
def num_parts_of(num_rows, num_threads):
    """In how many parts a step's rows are multiplied."""
    num_parts = most_parts(num_threads)
    fewest_rows = _ROWS_A_THREAD_AND_PART * num_threads * num_parts
    return num_parts if num_rows >= fewest_rows else 1


@inner
def crosses_cores(num_rows, num_threads):
    """Whether all threads multiply all rows, and rows are so many that it takes time.

    Then half of what a thread reads after a barrier, or more, was written by others just before. It
    comes in a fraction of the time when it is asked for at once, above all where cores have no
    cache in common. Fewer rows would hold up the stream of weights.
    """
    some = _STREAMED_LANES < num_rows <= _MOST_CROSSING_ROWS
    return some and num_threads > 1 and num_parts_of(num_rows, num_threads) == 1


@inner
def run_products(
    model, layers, groups, phase, jobs, inputs, num_lanes, candidates, fetches, thread, num_threads
):
    """Take chunks of the phase's matrices until none is left, of the own part first.

    ``inputs`` are the addresses of integers, scales and dense rows. Where there are ``candidates``
    to be noted the results are logits: an address, and the vocabulary's size. See ``greedy``.
    """
    streams = num_lanes <= _STREAMED_LANES and num_threads <= _MAX_PARTS
    some = _STREAMED_LANES < num_lanes <= _MOST_CROSSING_ROWS and num_threads > 1
    if some and _num_parts(phase, num_lanes, num_threads) == 1:
        integers, scales, dense = inputs
        ask_for(integers, num_lanes * phase.width * phase.integers)
        ask_for(scales, num_lanes * phase.width // 32 * LANE_SCALE_BYTES * phase.integers)
        ask_for(dense, num_lanes * phase.width * 4 * phase.dense)
    for index in range(phase.first_job, phase.end_job):
        counters = model.counters + index * model.counter_bytes
        if streams:
            _stream(
                phase, jobs[index], inputs, num_lanes, candidates, counters, thread, num_threads
            )
            continue
        _multiply_rows(
            model,
            layers,
            groups,
            phase,
            jobs[index],
            inputs,
            num_lanes,
            candidates,
            counters,
            fetches,
            (thread, num_threads),
        )


@inner
def _num_parts(phase, num_lanes, num_threads):
    """In how many parts a phase's lanes are multiplied: those of a token stay together."""
    return num_parts_of(num_lanes if phase.parts == 1 else 0, num_threads)


@inner
def _multiply_chunk(phase, job, inputs, start, end, first, last, candidates, fetches):
    """Row tiles ``first … last - 1`` times lanes ``start … end - 1``."""
    integers, scales, dense = inputs
    lanes = dense if job.dense != 0 else integers
    lane_bytes = phase.width * (4 if job.dense != 0 else 1)
    _multiply(
        job.multiply,
        (
            job.weights,
            job.groups,
            first,
            last,
            lanes + start * lane_bytes,
            scales + start * job.groups * LANE_SCALE_BYTES,
            end - start,
            job.outputs + start * job.output_bytes,
            job.output_bytes,
            fetches,
        ),
    )
    noted, vocabulary = candidates
    first_token, end_token = first * TILE_ROWS, min(last * TILE_ROWS, vocabulary)
    if job.tops != 0:
        note_tops(job, start, end, first, last, vocabulary)
    elif noted != 0 and first_token < end_token:
        first_row, end_row = start // phase.parts, end // phase.parts
        note_candidates(
            noted, job.outputs, job.output_bytes, first_row, end_row, first_token, end_token
        )


@inner
def _multiply_rows(
    model,
    layers,
    groups,
    phase,
    job,
    inputs,
    num_lanes,
    candidates,
    counters,
    fetches,
    team,
):
    """One matrix times rows that are cut in parts, if there are so many."""
    thread, num_threads = team
    num_parts = _num_parts(phase, num_lanes, num_threads)
    own_part = thread * num_parts // num_threads
    for turn in range(num_parts):
        part = (own_part + turn) % num_parts
        start, end = share_panels(num_lanes, part, num_parts)
        counter = counters + part * 8
        first = atomic_add(counter, 1) * job.chunk
        while first < job.row_tiles:
            last = min(first + job.chunk, job.row_tiles)
            choose_fetches(model, layers, groups, job, first, last, num_parts, fetches, team)
            _multiply_chunk(phase, job, inputs, start, end, first, last, candidates, fetches)
            first = atomic_add(counter, 1) * job.chunk


@inner
def _stream(phase, job, inputs, num_lanes, candidates, counters, thread, num_threads):
    """One matrix, cut in parts, times few rows."""
    for turn in range(num_threads):
        part = (thread + turn) % num_threads
        start, end = share(job.row_tiles, part, num_threads)
        chunk = min(job.chunk, (end - start + _CHUNKS_A_PART - 1) // _CHUNKS_A_PART)
        num_chunks = (end - start + chunk - 1) // chunk if end > start else np.int64(0)
        begun = counters + part * COUNTER_BYTES
        taken = begun + _TAKEN
        number = np.int64(0)
        while atomic_load(begun) + atomic_load(taken) < num_chunks:
            if turn == 0:
                atomic_store(begun, number + 1)
            else:
                number = num_chunks - 1 - atomic_add(taken, 1)
                if number < atomic_load(begun):
                    break
            first = start + number * chunk
            last = min(first + chunk, end)
            _multiply_chunk(
                phase, job, inputs, np.int64(0), num_lanes, first, last, candidates, np.int64(0)
            )
            number += 1
