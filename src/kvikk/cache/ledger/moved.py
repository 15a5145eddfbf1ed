"""Runs of a prompt that were seen before behind a different prefix.

A run is found by a whole block of it that was computed before, and reaches as far to both sides as
the two sequences stay equal, at most to the next block:

    seen     … 41 7 │ 8 9 3 3 │ 5 6 12 …          block size 4
    new      … 40 7   8 9 3 3   5 6 13 …
               [──── the run ──────)

A text that repeats itself is found everywhere at once. So of all runs the fewest are kept that
cover as much, and the number of them is bounded by the number of blocks.
"""

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kvikk.cache.ledger.contents import Contents, Tokens
from kvikk.cache.ledger.records import Detail

_TOKEN_BYTES = 4
# Of an ended sequence, beside its tokens: its array and its entry, measured.
_SEQUENCE_BYTES = 256
# Of a value that differs so many tokens are told at most.
_VALUE_TOKENS = 64
# A prompt patched together from more sequences than these is not compared with all of them.
_MOST_COMPARED = 32

# The tokens of a sequence, live or ended; None where they are forgotten.
TokensOf = Callable[[int], "Sequence[int] | None"]


class RecentTokens:
    """The tokens of sequences that have ended, the last ``capacity_bytes`` of them."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._held_bytes = 0
        self._sequences: OrderedDict[int, array[int]] = OrderedDict()

    def add(self, sequence: int, tokens: Sequence[int]) -> None:
        """Remember one more; the oldest are forgotten."""
        self._sequences[sequence] = array("I", tokens)
        self._held_bytes += _SEQUENCE_BYTES + _TOKEN_BYTES * len(tokens)
        while self._held_bytes > self._capacity_bytes:
            _, oldest = self._sequences.popitem(last=False)
            self._held_bytes -= _SEQUENCE_BYTES + _TOKEN_BYTES * len(oldest)

    def get(self, sequence: int) -> "Sequence[int] | None":
        """Its tokens, if they are still remembered."""
        return self._sequences.get(sequence)


@dataclass(frozen=True, slots=True)
class Run:
    """Positions ``start … stop - 1`` of a prompt, equal to another sequence's from ``seen_at``.

    ``differs_at`` is the first token that differs before it, None where the other is forgotten.
    """

    start: int
    stop: int
    sequence: int
    seen_at: int
    differs_at: int | None

    @property
    def same_prefix(self) -> bool:
        """Whether all tokens before are the same too: nothing has moved."""
        return self.differs_at == self.start == self.seen_at


class RunFinder:
    """Finds the runs of one prompt, when it is asked for them, from position ``first`` on."""

    def __init__(
        self,
        prompt: Tokens,
        block_size: int,
        tokens_of: TokensOf,
        contents: Contents,
        seed: int,
        first: int,
    ) -> None:
        self._prompt = prompt
        self._contents = contents
        self._seed = seed
        self._first = first
        self._block_size = block_size
        self._tokens_of = tokens_of
        self._others: dict[int, Tokens | None] = {}
        self._common: dict[int, int] = {}

    @cached_property
    def runs(self) -> list[Run]:
        """Without overlap, in order."""
        positions, rows = self._contents.find(self._prompt[self._first :], self._seed)
        if not len(positions):
            return []
        return self._cover(*_clusters(positions + self._first, rows, self._block_size))

    def detail(self, run: Run) -> Detail:
        """What differs in front of a run."""
        other, differs_at = self._other(run.sequence), run.differs_at
        if other is None or differs_at is None:
            return Detail(sequence=run.sequence, seen_at=run.seen_at)
        return Detail(
            sequence=run.sequence,
            seen_at=run.seen_at,
            differs_at=differs_at,
            value=tuple(self._prompt[differs_at : run.start][:_VALUE_TOKENS].tolist()),
            seen_value=tuple(other[differs_at : run.seen_at][:_VALUE_TOKENS].tolist()),
        )

    def _cover(
        self, starts: list[int], stops: list[int], sequences: list[int], shifts: list[int]
    ) -> list[Run]:
        """The fewest of these runs, in order of their starts, that cover as much.

        Of those that leave no gap the one that goes on furthest is taken. Runs are stretched where
        nothing comes before or follows.
        """
        chosen: list[int] = []
        farthest = _farthest_until(stops)
        covered, index = -1, 0
        while index < len(starts):
            index = bisect_right(starts, max(covered, starts[index]), index)
            best = farthest[index - 1]
            if stops[best] > covered:
                chosen.append(best)
                covered = stops[best]
        runs: list[Run] = []
        stop = 0
        for place, best in enumerate(chosen):
            follows = chosen[place + 1] if place + 1 < len(chosen) else None
            limit = len(self._prompt) if follows is None else starts[follows]
            start = self._stretched_back(starts[best], sequences[best], shifts[best], stop)
            stop = self._stretched_on(stops[best], sequences[best], shifts[best], limit)
            runs.append(self._run(start, stop, sequences[best], shifts[best]))
        return runs

    def _run(self, start: int, stop: int, sequence: int, shift: int) -> Run:
        other, seen_at = self._other(sequence), start + shift
        if other is None:
            return Run(start, stop, sequence, seen_at, None)
        if sequence not in self._common:
            size = min(len(self._prompt), len(other))
            self._common[sequence] = _equal(self._prompt[:size], other[:size])
        differs_at = min(self._common[sequence], start, seen_at)
        return Run(start, stop, sequence, seen_at, differs_at)

    def _stretched_back(self, start: int, sequence: int, shift: int, limit: int) -> int:
        """How far in front of ``start`` the sequences are equal already, not below ``limit``."""
        if start <= limit:
            return limit
        other = self._other(sequence)
        most = min(start - limit, start + shift, self._block_size - 1)
        if other is None or most == 0:
            return start
        here = self._prompt[start - most : start][::-1]
        return start - _equal(here, other[start + shift - most : start + shift][::-1])

    def _stretched_on(self, stop: int, sequence: int, shift: int, limit: int) -> int:
        """How far behind ``stop`` the sequences are equal still, not beyond ``limit``."""
        other = self._other(sequence)
        if other is None or stop >= limit:
            return stop
        most = min(limit - stop, len(other) - stop - shift, self._block_size - 1)
        there = other[stop + shift : stop + shift + most]
        return stop + _equal(self._prompt[stop : stop + most], there)

    def _other(self, sequence: int) -> Tokens | None:
        if sequence not in self._others:
            if len(self._others) >= _MOST_COMPARED:
                return None
            tokens = self._tokens_of(sequence)
            self._others[sequence] = None if tokens is None else np.array(tokens, np.uint32)
        return self._others[sequence]


def _clusters(
    positions: NDArray[np.int64], rows: NDArray[np.void], block_size: int
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Blocks that follow each other here as they did there, as one: start, stop, sequence, shift.

    In the order of their starts.
    """
    shifts = rows["start"] - positions
    order = np.lexsort((positions, shifts, rows["sequence"]))
    positions, sequences, shifts = positions[order], rows["sequence"][order], shifts[order]
    opens = np.ones(len(positions), np.bool_)
    opens[1:] = (
        (np.diff(positions) > block_size) | (np.diff(shifts) != 0) | (np.diff(sequences) != 0)
    )
    firsts = np.flatnonzero(opens)
    lasts = np.append(firsts[1:], len(positions)) - 1
    by_start = np.argsort(positions[firsts], kind="stable")
    firsts, lasts = firsts[by_start], lasts[by_start]
    return (
        positions[firsts].tolist(),
        (positions[lasts] + block_size).tolist(),
        sequences[firsts].tolist(),
        shifts[firsts].tolist(),
    )


def _farthest_until(stops: list[int]) -> list[int]:
    """Of each index the first one up to it whose stop is the largest."""
    values = np.array(stops)
    leads = np.ones(len(values), np.bool_)
    leads[1:] = values[1:] > np.maximum.accumulate(values)[:-1]
    farthest: list[int] = np.maximum.accumulate(np.where(leads, np.arange(len(values)), 0)).tolist()
    return farthest


def _equal(a: Tokens, b: Tokens) -> int:
    """How many leading tokens two arrays of one length share."""
    different = np.flatnonzero(a != b)
    return int(different[0]) if len(different) else len(a)
