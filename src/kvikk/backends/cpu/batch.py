"""From a batch to work: what is checked before a kernel may follow a table, and how it is cut up.

A batch that would lead outside of memory is refused here, whoever made it: compiled code checks
nothing. The cost at one token is about a microsecond.
"""

import numpy as np
from numba import int64

from kvikk.backends.cpu.attention import SUB_BLOCK_SLOTS
from kvikk.backends.cpu.fetching import list_stretches
from kvikk.backends.cpu.items import list_items
from kvikk.backends.cpu.jit import entry, inner, table_of
from kvikk.backends.cpu.raw import clear_words, int32s, int64s
from kvikk.backends.cpu.records import GROUP, MODEL

PROBLEMS = (
    "",
    "sequences must be numbered 0, 1, … in the order of their tokens",
    "a sequence's positions must be consecutive",
    "a position is negative or beyond the planned context",
    "a token id is outside of the vocabulary",
    "a block table has no block for a position that is read or written",
    "rows that want logits or hidden states must be ascending and inside the batch",
)
(
    SOUND,
    BAD_SEQUENCES,
    BAD_POSITIONS,
    BAD_RANGE,
    BAD_TOKEN,
    BAD_TABLE,
    BAD_WANTED_ROWS,
) = range(len(PROBLEMS))


@inner
def _check(token_ids, positions, sequences, wanted_rows, num_sequences, vocabulary, max_context):
    """The first problem with everything but the tables."""
    for token in range(len(positions)):
        before = sequences[token - 1] if token > 0 else np.int32(-1)
        if sequences[token] == before:
            if positions[token] != positions[token - 1] + 1:
                return BAD_POSITIONS
        elif sequences[token] != before + 1:
            return BAD_SEQUENCES
        if positions[token] < 0 or positions[token] >= max_context:
            return BAD_RANGE
        if token_ids[token] < 0 or token_ids[token] >= vocabulary:
            return BAD_TOKEN
    if sequences[-1] >= num_sequences:
        return BAD_SEQUENCES
    for index in range(len(wanted_rows)):
        before = wanted_rows[index - 1] if index > 0 else np.int32(-1)
        if wanted_rows[index] <= before or wanted_rows[index] >= len(positions):
            return BAD_WANTED_ROWS
    return SOUND


@inner
def _tables_are_sound(group, positions, sequences, block_size):
    """Whether every position that a token may read or write has a block."""
    token = 0
    while token < len(positions):
        end = token + 1
        while end < len(positions) and sequences[end] == sequences[token]:
            end += 1
        first = np.int64(positions[token])
        first = max(first + 1 - group.window, 0) if group.window > 0 else np.int64(0)
        last_block = np.int64(positions[end - 1]) // block_size
        if last_block >= group.table_columns:
            return False
        row = np.int64(sequences[token]) * group.table_columns * 4
        table = int32s(group.tables + row, group.table_columns)
        for index in range(first // block_size, last_block + 1):
            if table[index] < 0 or table[index] >= group.num_blocks:
                return False
        token = end
    return True


@inner
def _list_runs(model, positions, sequences):
    """Where runs of tokens of one sequence in one sub-block begin, and where the last ends."""
    runs = int64s(model.runs, len(positions) + 1)
    num_runs = 0
    for token in range(len(positions)):
        if (
            token == 0
            or sequences[token] != sequences[token - 1]
            or positions[token] % SUB_BLOCK_SLOTS == 0
        ):
            runs[num_runs] = token
            num_runs += 1
    runs[num_runs] = len(positions)
    model.num_runs = num_runs


# The types of ``prepare``'s arguments.
_INT32S = table_of(np.dtype(np.int32))
PREPARE_TYPES = (table_of(MODEL), table_of(GROUP), *[_INT32S] * 4, *[int64] * 4)


@entry()
def prepare(
    model_table,
    groups,
    token_ids,
    positions,
    sequences,
    wanted_rows,
    num_sequences,
    block_size,
    vocabulary_size,
    max_context,
):
    """Check a batch and cut it up; returns a problem's number, 0 for none.

    ``groups`` know their tables already. After a problem nothing may be run. All wanted rows are
    taken to want logits, and no sequence to have an adapter; where it is otherwise, the caller says
    so before the step is run.
    """
    problem = _check(
        token_ids, positions, sequences, wanted_rows, num_sequences, vocabulary_size, max_context
    )
    if problem != SOUND:
        return problem
    model = model_table[0]
    model.num_tokens = len(positions)
    model.num_wanted = model.num_logits = len(wanted_rows)
    model.hidden_states = model.adapters = model.only_bare = model.is_rough = 0
    model.token_ids, model.positions = token_ids.ctypes.data, positions.ctypes.data
    model.sequences, model.wanted_rows = sequences.ctypes.data, wanted_rows.ctypes.data
    for index in range(len(groups)):
        group = groups[index]
        if not _tables_are_sound(group, positions, sequences, block_size):
            return BAD_TABLE
        list_items(model, group, index, positions, sequences, wanted_rows, block_size)
        list_stretches(group, positions, sequences, block_size)
    _list_runs(model, positions, sequences)
    clear_words(model.counters, model.num_counters * model.counter_bytes // 4)
    return SOUND
