"""Prompt lookup: guess what comes next from what the same sequence has said before.

An answer that quotes its prompt, edits code or repeats itself goes on as it went on the last time.
After Saxena, "Prompt Lookup Decoding" (2023), but a match is followed as long as it holds:

    tokens   … the cat sat on the mat … the cat
                           ^ cursor          ^ end: the last ``length`` tokens stand before both

While the next token is the one at the cursor, both move on and the match grows; where it is not,
the longest of the last 4, 3 or 2 tokens seen before gives the next one, at its latest place. How
often a match of a given length was right is counted whether or not its guess was used, so that a
sequence whose text stops repeating costs nothing, and one that begins to is noticed.

It guesses only. Whether a guess is computed is the scheduler's choice, and what it may change is
how soon a token comes, never which.
"""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_SHORTEST, _LONGEST = 2, 4
# Match lengths beyond this are not told apart.
_LENGTH_LIMIT = 31
# The chance that the next token of a match is right, by the bits of its length (2-3, 4-7, 8-15 and
# 16 or more tokens), until the sequence has shown its own.
_FIRST_CHANCES = (0.0, 0.0, 0.3, 0.55, 0.75, 0.9)
_LEARNING_RATE = 1 / 16
# More new tokens than this are taken in by numpy.
_MANY_TOKENS = 64
_WORD = 2**64 - 1
_FACTOR = 0x9E3779B97F4A7C15


class Guess(NamedTuple):
    """A token, and the chance that it and all guesses before it are right."""

    token_id: int
    chance: float


class PromptLookup:
    """One sequence's n-grams. ``max_tokens`` bounds its length, and so the table: 4 slots a token.

    The table holds at most 65,536 positions; in longer texts new n-grams displace old ones.
    """

    def __init__(self, max_tokens: int) -> None:
        bits = min(max((4 * max_tokens).bit_length(), 8), 16)
        self._shift = 64 - bits
        self._table = array("i", [-1]) * (1 << bits)
        self._chances = list(_FIRST_CHANCES)
        self._num_tokens = 0  # taken in
        self._cursor = -1  # where the guessed continuation begins; -1: there is no match
        self._length = 0  # of the match

    def draft(self, tokens: Sequence[int], least_chance: float, max_tokens: int) -> list[Guess]:
        """What may follow ``tokens``, as far as the whole guess is at least that likely.

        ``tokens`` are those of the call before, or more. Costs O(new tokens).
        """
        self._take_in(tokens)
        guesses: list[Guess] = []
        if self._cursor < 0:
            return guesses
        chance = 1.0
        for ahead in range(max_tokens):
            chance *= self._chances[min(self._length + ahead, _LENGTH_LIMIT).bit_length()]
            if chance < least_chance:
                break
            place = self._cursor + ahead
            # A match may reach its own guess: then the text turns in a circle.
            known = place < len(tokens)
            token_id = tokens[place] if known else guesses[place - len(tokens)].token_id
            guesses.append(Guess(token_id, chance))
        return guesses

    def _take_in(self, tokens: Sequence[int]) -> None:
        start, stop = self._num_tokens, len(tokens)
        if stop - start > _MANY_TOKENS:
            # All but the last, which looks for a match before its own n-grams are in the table.
            self._index_many(tokens, start, stop - 1)
            self._cursor, start = -1, stop - 1
        for position in range(start, stop):
            self._follow(tokens, position)
            self._index(tokens, position)
        self._num_tokens = stop

    def _follow(self, tokens: Sequence[int], position: int) -> None:
        """Compare the token at ``position`` with the guess, and move on."""
        if self._cursor < 0:
            return
        right = tokens[self._cursor] == tokens[position]
        kind = self._length.bit_length()
        self._chances[kind] += (right - self._chances[kind]) * _LEARNING_RATE
        if right:
            self._cursor += 1
            self._length = min(self._length + 1, _LENGTH_LIMIT)
        else:
            self._cursor = -1

    def _index(self, tokens: Sequence[int], position: int) -> None:
        """Enter the n-grams that end at ``position``; without a match, look them up first."""
        slots, state = [], 0
        for length in range(1, min(_LONGEST, position + 1) + 1):
            state = (state + tokens[position + 1 - length] + 1) * _FACTOR & _WORD
            if length >= _SHORTEST:
                slots.append(state >> self._shift)
        if self._cursor < 0:
            for slot in reversed(slots):
                if self._match(tokens, self._table[slot], position + 1):
                    break
        for slot in slots:
            self._table[slot] = position + 1

    def _match(self, tokens: Sequence[int], place: int, end: int) -> bool:
        """Begin to follow ``place`` if enough tokens before it are those before ``end``."""
        if place < 0:
            return False
        length = 0
        while (
            length < min(place, _LENGTH_LIMIT)
            and tokens[place - 1 - length] == tokens[end - 1 - length]
        ):
            length += 1
        if length < _SHORTEST:  # two n-grams share the slot
            return False
        self._cursor, self._length = place, length
        return True

    def _index_many(self, tokens: Sequence[int], start: int, stop: int) -> None:
        """What ``_index`` enters for the tokens from ``start`` to ``stop``, without looking up."""
        first = max(0, start - _LONGEST + 1)
        words = np.array(tokens[first:stop], np.uint64) + np.uint64(1)
        positions = np.arange(first + 1, stop + 1, dtype=np.int32)
        table = np.frombuffer(self._table, np.int32)
        factor, shift = np.uint64(_FACTOR), np.uint64(self._shift)
        state = words * factor
        for length in range(2, _LONGEST + 1):
            # The n-gram that ends at a token goes on backwards: one token more on the left.
            state = (state[1:] + words[: 1 - length]) * factor
            table[state >> shift] = positions[length - 1 :]  # of equal slots the last one stays
