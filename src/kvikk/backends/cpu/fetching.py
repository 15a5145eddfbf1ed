"""Keys and values are fetched while products are computed.

Attention over many short contexts is bound by memory, products of many tokens by arithmetic: what
the next attention will read is asked for bit by bit while the products before it run, and waits in
the cache. That changes when memory is read, never what is computed.

    cores     attention | output · gate and up · down · the next layer's projections | attention
    memory              | weights, and in between the next layer's keys and values   | (cached)

A stretch is 512 bytes of one layer in one block, listed by its distance from the layer's first byte
in block 0: one list serves all layers of a group. A thread fetches the stretches of the sequences
that its attention begins with, as cores that lie far apart have no cache in common.
"""

import numpy as np

from kvikk.backends.cpu.jit import inner
from kvikk.backends.cpu.raw import int32s, int64s
from kvikk.backends.cpu.threads import share

STRETCH_BYTES = 512
# More would push out what was fetched first: of a last-level cache of 16 MiB a half.
MAX_STRETCHES = (8 << 20) // STRETCH_BYTES
# What a thread fetches during some products, and how far it is: see ``choose_fetches``.
FETCHES_BYTES = 5 * 8
# With fewer tokens products wait for memory themselves.
_FEWEST_TOKENS = 6


@inner
def list_stretches(group, positions, sequences, block_size):
    """List what the attention of one layer of ``group`` will read, sequence by sequence.

    Where all of it is too much, of each sequence the same share.
    """
    num_tokens = len(positions)
    stretches = int64s(group.stretches, MAX_STRETCHES)
    starts = int64s(group.stretch_starts, num_tokens + 1)
    block_stretches = (group.layer_bytes + STRETCH_BYTES - 1) // STRETCH_BYTES
    num_blocks = np.int64(0)
    for token in range(num_tokens if num_tokens >= _FEWEST_TOKENS else 0):
        if token + 1 == num_tokens or sequences[token + 1] != sequences[token]:
            first, end = _blocks_of(group, positions, sequences, token, block_size)
            num_blocks += end - first
    room = MAX_STRETCHES // block_stretches
    count, token = np.int64(0), 0
    while token < num_tokens and num_blocks > 0:
        begin, before = token, count
        while token + 1 < num_tokens and sequences[token + 1] == sequences[token]:
            token += 1
        first, end = _blocks_of(group, positions, sequences, token, block_size)
        if num_blocks > room:
            end = first + (end - first) * room // num_blocks
        sequence = np.int64(sequences[token])
        table = int32s(group.tables + sequence * group.table_columns * 4, group.table_columns)
        for index in range(first, end):
            start = np.int64(table[index]) * group.block_bytes
            for stretch in range(block_stretches):
                stretches[count + stretch] = start + stretch * STRETCH_BYTES
            count += block_stretches
        token += 1
        for own in range(begin, token):
            starts[own] = before + (count - before) * (own - begin) // (token - begin)
    starts[num_tokens] = group.num_stretches = count


@inner
def _blocks_of(group, positions, sequences, last, block_size):
    """The blocks that a sequence reads whose last token of a step is ``last``: first, end."""
    first = last
    while first > 0 and sequences[first - 1] == sequences[last]:
        first -= 1
    seen = max(np.int64(positions[first]) + 1 - group.window, 0) if group.window > 0 else 0
    return np.int64(seen // block_size), np.int64(positions[last]) // block_size + 1


@inner
def forget_fetches(fetches):
    """Begin a step: nothing of it has been fetched."""
    int64s(fetches, 5)[3] = 0


@inner
def choose_fetches(model, layers, groups, job, first, last, num_parts, fetches, team):
    """Write to ``fetches`` what to fetch during row tiles ``first … last - 1`` of a job.

    These are three integers: the layer's first byte, where the list of stretches begins, how many;
    and two for the next time: which layer that was, and the next stretch. What is multiplied
    meanwhile is one of ``num_parts`` of the step's tokens. ``team``: a thread, of how many.
    """
    chosen = int64s(fetches, 5)
    chosen[2] = 0
    group = groups[layers[job.fetched_layer].group]
    if job.fetching_work == 0 or group.num_stretches == 0:
        return
    layer, (thread, num_threads) = layers[job.fetched_layer], team
    starts = int64s(group.stretch_starts, model.num_tokens + 1)
    first_token, end_token = share(model.num_tokens, thread, num_threads)
    start, end = starts[first_token], starts[end_token]
    if chosen[3] != layer.keys:
        chosen[3], chosen[4] = layer.keys, start
    # As much of the thread's stretches as this is of the work that it can expect to do.
    own = (last - first) * job.groups * num_threads
    work = job.fetching_work * num_parts
    begin = chosen[4]
    count = min(((end - start) * own + work - 1) // work, end - begin)
    chosen[0], chosen[1], chosen[2] = layer.keys, group.stretches + begin * 8, count
    chosen[4] = begin + count


@inner
def fetches_at(fetches):
    """The layer, the list and how many, of what is to be fetched; nothing for 0."""
    if fetches == 0:
        return np.int64(0), np.int64(0), np.int64(0)
    chosen = int64s(fetches, 3)
    return chosen[0], chosen[1], chosen[2]
