"""What each sequence of a batch sees, worked out once for all layers of a group."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvikk.backends.base import Batch


@dataclass(frozen=True)
class Places:
    """Physical block and slot of some tokens, in the tokens' order."""

    blocks: NDArray[np.int32]
    slots: NDArray[np.int32]


@dataclass(frozen=True)
class Lookback:
    """One sequence's view: T tokens of the batch look at C cached ones, themselves included.

    ``mask`` is 0 where a token may look and -inf where it may not.
    """

    rows: slice  # of the batch: T
    places: Places  # [C]
    mask: NDArray[np.float32]  # [T, C]


def write_places(batch: Batch, group: int, block_size: int) -> Places:
    """Where the keys and values of the batch's tokens go."""
    tables = batch.block_tables[group]
    return Places(
        tables[batch.sequence_rows, batch.positions // block_size], batch.positions % block_size
    )


def lookbacks(
    batch: Batch, group: int, window_tokens: int | None, block_size: int
) -> tuple[Lookback, ...]:
    """The views of all sequences, in the order of the batch.

    Of a sequence whose tokens are at positions first … last, what they see taken together is

        without a window   [ 0 … last ]
        with one           [ first - window + 1 … last ]
    """
    views = []
    for sequence, rows in _sequences(batch):
        positions = batch.positions[rows]
        first = 0 if window_tokens is None else max(0, int(positions[0]) - window_tokens + 1)
        seen = np.arange(first, int(positions[-1]) + 1, dtype=np.int32)
        distance = positions[:, None] - seen
        visible = distance >= 0
        if window_tokens is not None:
            visible &= distance < window_tokens
        blocks = batch.block_tables[group][sequence, seen // block_size]
        assert blocks.min() >= 0, "a token looks into a block that was given back"
        mask = np.where(visible, np.float32(0), np.float32(-np.inf))
        views.append(Lookback(rows, Places(blocks, seen % block_size), mask))
    return tuple(views)


def _sequences(batch: Batch) -> Iterator[tuple[int, slice]]:
    """Each sequence's number, and its rows in the batch."""
    starts = np.flatnonzero(np.diff(batch.sequence_rows, prepend=-1)).tolist()
    stops = [*starts[1:], len(batch.sequence_rows)]
    for start, stop in zip(starts, stops, strict=True):
        yield int(batch.sequence_rows[start]), slice(start, stop)
