"""Where a run of tokens was seen before, at any alignment.

Of every block that was computed a hash of its tokens is remembered; over a new prompt a hash of as
many tokens is rolled, and every position is looked up:

    seen       [ clock . . . . . . ][ the same words . . . . ]
    new      [ clock . . ]  [ the same words . . . . ]              found wherever it begins

The hash of tokens t at position i is Σ mix(t[i + k]) * r**k modulo 2**64, which two prefix sums
give for all positions at once. Tokens are mixed differently under different root keys: what another
tenant or another model has seen could not have been reused, wherever it stood.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvikk.cache.ledger.recent import RecentTable, bytes_per_row

Tokens = NDArray[np.uint32]

# The sequence that computed the block, and the position it begins at.
_ROW = np.dtype([("sequence", np.int64), ("start", np.int64)])
BYTES_PER_BLOCK = bytes_per_row(_ROW)

_RADIX = 0x9E3779B97F4A7C15  # odd, and so without a common factor with 2**64
_INVERSE_RADIX = pow(_RADIX, -1, 1 << 64)


class Contents:
    """Remembers the contents of the last ``capacity`` blocks, or half of them."""

    def __init__(self, block_size: int, capacity: int) -> None:
        self._block_size = block_size
        self._table = RecentTable(capacity, _ROW)
        self._powers = _powers(_RADIX, 256)
        self._inverse_powers = _powers(_INVERSE_RADIX, 256)

    def add(self, blocks: Tokens, sequence: int, starts: NDArray[np.int64], seed: int) -> None:
        """Remember a sequence's whole blocks, ``[n, block_size]``, which begin at ``starts``."""
        rows = np.zeros(len(starts), _ROW)
        rows["sequence"], rows["start"] = sequence, starts
        self._table.add(self._hashes(blocks.reshape(-1), seed, self._block_size), rows)

    def find(self, tokens: Tokens, seed: int) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        """Positions at which the tokens of a remembered block begin, and where that was.

        The second has the fields ``sequence`` and ``start``.
        """
        if len(tokens) < self._block_size or not len(self._table):
            return np.zeros(0, np.int64), np.zeros(0, _ROW)
        found, rows = self._table.find(self._hashes(tokens, seed, 1))
        return np.flatnonzero(found), rows[found]

    def _hashes(self, tokens: Tokens, seed: int, step: int) -> NDArray[np.uint64]:
        """Of the tokens of a block from positions 0, ``step``, 2 * ``step`` … on."""
        count, size = len(tokens), self._block_size
        if count >= len(self._powers):
            self._powers = _powers(_RADIX, 2 * count)
            self._inverse_powers = _powers(_INVERSE_RADIX, 2 * count)
        terms = _mix(tokens.astype(np.uint64) + np.uint64(seed)) * self._powers[:count]
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
        starts = np.arange(0, count - size + 1, step)
        return _mix((sums[starts + size] - sums[starts]) * self._inverse_powers[starts])


def fingerprints(keys: Sequence[bytes]) -> NDArray[np.uint64]:
    """The first 64 bits of each key."""
    return np.frombuffer(b"".join(key[:8] for key in keys), np.uint64)


def seed_of(root_key: bytes) -> int:
    """A root key as a number that its tokens are mixed with."""
    return int.from_bytes(root_key[:6], "little") << 16


def _powers(radix: int, count: int) -> NDArray[np.uint64]:
    powers = np.full(count, radix, np.uint64)
    powers[0] = 1
    return np.cumprod(powers, dtype=np.uint64)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: every bit of the result depends on every bit of the value."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed
