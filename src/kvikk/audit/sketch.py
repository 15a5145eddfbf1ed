"""A few numbers that say what stands in a text, so that a changed copy of it is found again.

Every run of 16 characters gets a number; the texts' smallest ones are kept (Broder, 1997). A value
that changes in a long text changes few of its runs, so most of the smallest stay.
"""

import numpy as np

_RUN_BYTES = 16
_KEPT = 24
# Of a longer text the beginning stands for all.
_MOST_BYTES = 1 << 16
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def sketch(text: str) -> frozenset[int]:
    """The smallest numbers of ``text``; none for one that is shorter than two runs."""
    data = text[:_MOST_BYTES].encode("utf-8", "surrogatepass")
    if len(data) < 2 * _RUN_BYTES:
        return frozenset()
    # Eight bytes as one number, at every byte.
    halves = np.ndarray((len(data) - 7,), dtype="<u8", buffer=data, strides=(1,)).copy()
    runs = halves[:-8] * _MULTIPLIER ^ halves[8:]
    runs *= _MULTIPLIER
    runs ^= runs >> np.uint64(29)
    runs *= _MULTIPLIER
    if len(runs) > _KEPT:
        runs = np.partition(runs, _KEPT)[:_KEPT]
    return frozenset(runs.tolist())


def likeness(one: frozenset[int], other: frozenset[int]) -> float:
    """From 0 to 1: how much of two texts is the same."""
    return len(one & other) / max(1, min(len(one), len(other)))
