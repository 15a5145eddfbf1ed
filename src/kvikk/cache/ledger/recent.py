"""A bounded memory of what was seen lately: rows of numbers by 64-bit fingerprint.

Two generations of rows, each a table that only grows. When the young one is full it becomes the
old one, and the old one is forgotten: the newest ``capacity / 2`` rows are always remembered, and
never more than ``capacity``. No row is moved or deleted alone, so that a batch of thousands goes
in, or is looked up, in a few array operations.
"""

import numpy as np
from numpy.typing import NDArray

_FINGERPRINT_BYTES = 8
# A slot is a row's number plus one, 0 for none; four slots a row at most, as sizes are powers of 2.
_SLOT_BYTES = 4
_MOST_SLOTS_PER_ROW = 4
_FIRST_ROWS = 256

Fingerprints = NDArray[np.uint64]
Rows = NDArray[np.void]


def bytes_per_row(row: np.dtype[np.void]) -> int:
    """What one remembered row takes at most."""
    return row.itemsize + _FINGERPRINT_BYTES + _MOST_SLOTS_PER_ROW * _SLOT_BYTES


class RecentTable:
    """Remembers the newest row of each fingerprint, for the last ``capacity`` rows or half of them.

    Memory is taken as it is needed, at most ``capacity * bytes_per_row(row)``.
    """

    def __init__(self, capacity: int, row: np.dtype[np.void]) -> None:
        self._rows_per_generation = max(1, capacity // 2)
        self._row = row
        self._young = _Generation(self._rows_per_generation, row)
        self._old = _Generation(0, row)

    def __len__(self) -> int:
        return self._young.count + self._old.count

    def add(self, fingerprints: Fingerprints, rows: Rows) -> None:
        """Remember ``rows``; of equal fingerprints the last counts."""
        start = 0
        while start < len(rows):
            room = self._rows_per_generation - self._young.count
            if room == 0:
                self._old = self._young
                self._young = _Generation(self._rows_per_generation, self._row)
                continue
            stop = min(len(rows), start + room)
            self._young.add(fingerprints[start:stop], rows[start:stop])
            start = stop

    def find(self, fingerprints: Fingerprints) -> tuple[NDArray[np.bool_], Rows]:
        """Which are remembered, and the newest row of each (zeros of those that are not)."""
        rows = np.zeros(len(fingerprints), self._row)
        found = np.zeros(len(fingerprints), np.bool_)
        for generation in (self._old, self._young):  # the young one has the last word
            numbers = generation.find(fingerprints)
            known = numbers >= 0
            rows[known] = generation.rows[numbers[known]]
            found |= known
        return found, rows


class _Generation:
    """An open-addressing table of at most ``capacity`` rows, at most half full, which grows."""

    def __init__(self, capacity: int, row: np.dtype[np.void]) -> None:
        self._capacity = capacity
        self._make_room(min(capacity, _FIRST_ROWS), row)
        self.count = 0

    def _make_room(self, num_rows: int, row: np.dtype[np.void]) -> None:
        self.rows = np.zeros(num_rows, row)
        self._fingerprints = np.zeros(num_rows, np.uint64)
        num_slots = 1 << max(1, 2 * num_rows - 1).bit_length() if num_rows else 0
        self._slots = np.zeros(num_slots, np.uint32)

    def add(self, fingerprints: Fingerprints, rows: Rows) -> None:
        stop = self.count + len(rows)
        if stop > len(self.rows):
            known, named = self.rows[: self.count], self._fingerprints[: self.count]
            self._make_room(min(self._capacity, max(stop, 2 * len(self.rows))), rows.dtype)
            self._put(0, named, known)
        self._put(self.count, fingerprints, rows)
        self.count = stop

    def _put(self, first: int, fingerprints: Fingerprints, rows: Rows) -> None:
        """Write rows from number ``first`` on, and let their fingerprints lead to them."""
        numbers = np.arange(first, first + len(rows), dtype=np.uint32)
        self.rows[numbers] = rows
        self._fingerprints[numbers] = fingerprints
        mask = np.uint64(len(self._slots) - 1)
        places = fingerprints & mask
        while len(numbers):
            holders = self._slots[places]
            same = self._fingerprints[holders.astype(np.int64) - 1] == self._fingerprints[numbers]
            usable = (holders == 0) | same
            # Where several want one slot the last is there afterwards; the others look again, and
            # find either their own fingerprint or somebody else's.
            self._slots[places[usable]] = numbers[usable] + np.uint32(1)
            settled = self._slots[places]
            holder = self._fingerprints[settled.astype(np.int64) - 1]
            left = holder != self._fingerprints[numbers]
            numbers, places = numbers[left], (places[left] + np.uint64(1)) & mask

    def find(self, fingerprints: Fingerprints) -> NDArray[np.int64]:
        """The row number of each, -1 where there is none."""
        result = np.full(len(fingerprints), -1, np.int64)
        if self.count == 0:
            return result
        mask = np.uint64(len(self._slots) - 1)
        wanted = np.arange(len(fingerprints))
        places = fingerprints & mask
        while len(wanted):
            numbers = self._slots[places].astype(np.int64) - 1
            hit = (numbers >= 0) & (self._fingerprints[numbers] == fingerprints[wanted])
            result[wanted[hit]] = numbers[hit]
            left = (numbers >= 0) & ~hit
            wanted, places = wanted[left], (places[left] + np.uint64(1)) & mask
        return result
