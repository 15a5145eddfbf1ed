"""Attention work of a step: which tokens look at which pieces of whose context.

An item is some tokens against some whole pieces, read through one sequence's block table. A token's
context is covered by one item, or in parts by several that different threads may take; parts are
joined in order (``attention_rows.attention_row``). Three ways to cut, which change no bits:

    many tokens of a sequence    |  piece 0   piece 1   piece 2  |      one item for up to 96 rows
    few sequences of one token   |    0    |    1    |     2     |      an item a piece
    sequences with one prefix    |       0 and 1     |   own 2   |      the first for all of them

The last is found by the block tables alone: sequences that decode and whose blocks of a whole piece
are the same read its keys and values together, once. It does not matter why they share them.
"""

import numpy as np

from kvikk.backends.cpu.attention import PIECE_SLOTS, first_piece
from kvikk.backends.cpu.jit import inner
from kvikk.backends.cpu.raw import int32s, int64s
from kvikk.backends.cpu.records import (
    ITEM_FIELDS,
    ITEM_MEMBER,
    ITEM_PART,
    ITEM_PIECE,
    ITEM_PIECE_END,
    ITEM_SEQUENCE,
    ITEM_TOKENS,
    ITEM_WANTED,
    WHOLE,
)

# Of a step with no more single-token sequences than this, contexts are split between threads.
MAX_SPLIT_SEQUENCES = 8
# Parts there is room for, for each sequence of a larger step: what it shares, and a few of its own.
_SHARING_PARTS = 4
# A family of so many tokens is not cut in two.
_SMALLEST_FAMILY = 4
# Below this many tokens in a step, attention is cut finer, so that no thread waits for another.
MANY_TOKENS = 128
FEW_ITEM_TOKENS = 4


def max_parts(max_pieces: int, max_sequences: int) -> int:
    """Room for parts: a step needs no more, or cuts less."""
    return MAX_SPLIT_SEQUENCES * max_pieces + _SHARING_PARTS * max_sequences


@inner
def list_items(model, group, index, positions, sequences, wanted_rows, block_size):
    """List the items of group ``index``, the longest of a sequence first."""
    num_tokens = len(positions)
    members = int64s(group.members, 2 * num_tokens)
    parts = int64s(model.parts + index * num_tokens * 16, 2 * num_tokens)
    num_single = 0
    for token in range(num_tokens):
        members[token] = token
        parts[2 * token], parts[2 * token + 1] = 0, WHOLE
        num_single += 1 if _is_single(sequences, token) else 0
    group.num_items, group.num_members, group.num_parts = 0, num_tokens, 0
    by_piece = num_single <= MAX_SPLIT_SEQUENCES
    if num_single > 1:
        _list_families(model, group, positions, sequences, block_size, parts, by_piece)

    item_tokens = group.item_tokens if num_tokens >= MANY_TOKENS else FEW_ITEM_TOKENS
    end = num_tokens
    while end > 0:
        start = end - 1
        while (
            start > 0 and end - start < item_tokens and sequences[start - 1] == sequences[end - 1]
        ):
            start -= 1
        first = first_piece(np.int64(positions[start]), group.window)
        piece_end = np.int64(positions[end - 1]) // PIECE_SLOTS + 1
        single = _is_single(sequences, end - 1)
        if single and parts[2 * start + 1] == WHOLE:
            if by_piece and piece_end - first > 1:
                _take_parts(group, parts, start, piece_end - first)
                _add_parts(group, start, sequences[start], first, first, piece_end)
            else:
                _add_item(group, start, 1, sequences[start], first, piece_end, WHOLE, True)
        elif not single:
            # Of the last layer, only wanted rows are needed.
            wanted = np.searchsorted(wanted_rows, start) < np.searchsorted(wanted_rows, end)
            _add_item(group, start, end - start, sequences[start], first, piece_end, WHOLE, wanted)
        end = start


@inner
def _is_single(sequences, token):
    """Whether ``token`` is its sequence's only one in this step."""
    opens = token == 0 or sequences[token] != sequences[token - 1]
    return opens and (token + 1 == len(sequences) or sequences[token + 1] != sequences[token])


@inner
def _list_families(model, group, positions, sequences, block_size, parts, by_piece):
    """Items for pieces that several single tokens share, and for what each has after them."""
    num_tokens = len(positions)
    members = int64s(group.members, 2 * num_tokens)
    for leader in range(num_tokens):
        if not _is_single(sequences, leader) or parts[2 * leader + 1] != WHOLE:
            continue
        first = first_piece(np.int64(positions[leader]), group.window)
        shared_end = np.int64(positions[leader]) // PIECE_SLOTS
        start = group.num_members
        members[start] = leader
        size, num_parts = 1, np.int64(positions[leader]) // PIECE_SLOTS + 1
        for token in range(leader + 1, num_tokens if shared_end > first else leader):
            if not _is_single(sequences, token) or parts[2 * token + 1] != WHOLE:
                continue
            end = min(
                shared_end, _shared_end(group, positions, sequences, leader, token, block_size)
            )
            # One more member against fewer pieces: what is saved must not shrink.
            if end > first and size * (end - first) >= (size - 1) * (shared_end - first):
                members[start + size] = token
                size, shared_end = size + 1, end
                num_parts += np.int64(positions[token]) // PIECE_SLOTS + 1
        num_shared_parts = shared_end - first if by_piece else 1
        num_parts += size * (num_shared_parts - shared_end)
        if size == 1 or group.num_parts + num_parts > model.max_parts:
            continue
        group.num_members += size
        _add_family(group, positions, sequences, parts, start, size, first, shared_end, by_piece)


@inner
def _shared_end(group, positions, sequences, leader, token, block_size):
    """The end of the whole pieces before both tokens that lie in the same blocks for both."""
    window = group.window
    position = np.int64(min(positions[leader], positions[token]))
    if first_piece(np.int64(positions[leader]), window) != first_piece(
        np.int64(positions[token]), window
    ):
        return np.int64(0)
    block = max(position + 1 - window, 0) // block_size if window > 0 else np.int64(0)
    columns = group.table_columns
    table = int32s(group.tables + np.int64(sequences[leader]) * columns * 4, columns)
    other = int32s(group.tables + np.int64(sequences[token]) * columns * 4, columns)
    end_block = position // PIECE_SLOTS * PIECE_SLOTS // block_size
    while block < end_block and table[block] == other[block]:
        block += 1
    return block * block_size // PIECE_SLOTS


@inner
def _add_family(group, positions, sequences, parts, start, size, first, shared_end, by_piece):
    """The items of members ``start … start + size - 1``: shared pieces, then each one's own."""
    members = int64s(group.members, start + size)
    num_shared_parts = shared_end - first if by_piece else 1
    for member in range(start, start + size):
        token = members[member]
        own = np.int64(positions[token]) // PIECE_SLOTS + 1 - shared_end
        _take_parts(group, parts, token, num_shared_parts + own)
    # In two items, unless they were too small, so that two threads have something to do.
    item_tokens = min(max((size + 1) // 2, _SMALLEST_FAMILY), group.item_tokens)
    leader = sequences[members[start]]
    if by_piece:
        for piece in range(shared_end - 1, first - 1, -1):
            _add_item(group, start, size, leader, piece, piece + 1, piece - first, True)
    else:
        for member in range(start, start + size, item_tokens):
            count = min(item_tokens, start + size - member)
            _add_item(group, member, count, leader, first, shared_end, 0, True)
    for member in range(start, start + size):
        token = members[member]
        piece_end = np.int64(positions[token]) // PIECE_SLOTS + 1
        first_part_piece = shared_end - num_shared_parts
        _add_parts(group, token, sequences[token], first_part_piece, shared_end, piece_end)


@inner
def _take_parts(group, parts, token, count):
    parts[2 * token], parts[2 * token + 1] = group.num_parts, count
    group.num_parts += count


@inner
def _add_parts(group, token, sequence, part_0_piece, piece, piece_end):
    """Items of one token and one piece each, the last first; they are parts of it by number."""
    for one in range(piece_end - 1, piece - 1, -1):
        _add_item(group, token, 1, sequence, one, one + 1, one - part_0_piece, True)


@inner
def _add_item(group, member, num_tokens, sequence, piece, piece_end, part, wanted):
    item = int64s(group.items + group.num_items * ITEM_FIELDS * 8, ITEM_FIELDS)
    item[ITEM_MEMBER], item[ITEM_TOKENS], item[ITEM_SEQUENCE] = member, num_tokens, sequence
    item[ITEM_PIECE], item[ITEM_PIECE_END] = piece, piece_end
    item[ITEM_PART], item[ITEM_WANTED] = part, wanted
    group.num_items += 1
