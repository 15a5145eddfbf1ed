"""From logits to tokens, in numpy: what every backend without a better way uses.

A vocabulary has up to 262,144 entries, so nothing here sorts one where it can be avoided: a greedy
row is an argmax, an unfiltered one an exponential and a sum, and top-k and top-p first find the few
candidates that matter.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvikk.backends.base import LogitsEdit, SamplingParameters

# Tokens summed as one run when a row's cumulative distribution is searched.
_RUN_TOKENS = 512
# What is left of a float32's bits names a bin: 16 bins to a factor of two.
_BIN_SHIFT = 19
# Below this a temperature's reciprocal overflows; the distribution is a point long before.
_SMALLEST_TEMPERATURE = float(np.finfo(np.float32).tiny)


class LogitsError(ArithmeticError):
    """Logits from which no token can be chosen: NaN, +inf, or a row that forbids every token.

    ``rows`` are the indices at fault; the other rows are sound.
    """

    def __init__(self, rows: tuple[int, ...]) -> None:
        super().__init__(
            f"logits of row {', '.join(map(str, rows))} have no finite largest value: the model's "
            "arithmetic overflowed, its weights are damaged, or every token was masked"
        )
        self.rows = rows


def sample(
    logits: NDArray[np.float32],
    parameters: Sequence[SamplingParameters],
    uniforms: NDArray[np.float64],
    edits: Sequence[LogitsEdit | None] | None = None,
) -> NDArray[np.int64]:
    """Choose one token a row: greedy, or by inverting the cumulative distribution at one uniform.

    ``logits`` is ``[R, V]`` and may hold -inf, which is never chosen; ``uniforms`` is ``[R]`` in
    [0, 1). Returns ``[R]``. First come the edits, then temperature, top-k, top-p, min-p; equal
    logits rank by token id, lowest first. A row's choice depends on that row alone. Raises
    LogitsError.
    """
    if edits is not None:
        logits = logits.copy()
        for row, edit in enumerate(edits):
            if edit is not None:
                apply_edit(logits[row], edit)
    chosen: NDArray[np.int64] = np.argmax(logits, axis=1)
    peaks = logits[np.arange(len(logits)), chosen]
    sound = np.isfinite(peaks)  # a NaN anywhere in a row is its argmax
    if not sound.all():
        raise LogitsError(tuple(np.flatnonzero(~sound).tolist()))
    for row, choice in enumerate(parameters):
        if choice.temperature > 0:
            chosen[row] = _draw(logits[row], peaks[row], choice, float(uniforms[row]))
    return chosen


def apply_edit(logits: NDArray[np.float32], edit: LogitsEdit) -> None:
    """Change one row of logits in place, ``[V]``."""
    if len(edit.token_ids):
        edited = logits[edit.token_ids] + edit.biases
        edited = np.where(edited > 0, edited / edit.divisors, edited * edit.divisors)
        logits[edit.token_ids] = edited - edit.discounts
    if edit.allowed is not None:
        bits = np.unpackbits(edit.allowed.astype("<u4").view(np.uint8), bitorder="little")
        logits[: len(bits)][bits[: len(logits)] == 0] = -np.inf
        logits[len(bits) :] = -np.inf


def _draw(
    logits: NDArray[np.float32], peak: np.float32, choice: SamplingParameters, uniform: float
) -> int:
    """One token of one row with a positive temperature."""
    ids = largest(logits, choice.top_k) if 0 < choice.top_k < len(logits) else None
    weights = _weights(logits if ids is None else logits[ids], peak, choice.temperature)
    if choice.top_p < 1:
        kept = _nucleus(weights, choice.top_p)
        ids = kept if ids is None else ids[kept]
        weights = weights[kept]
    if choice.min_p > 0:
        # The likeliest token weighs 1, whatever else has been left out.
        weights = np.where(weights >= np.float32(choice.min_p), weights, np.float32(0))
    index = _invert(weights, uniform)
    return index if ids is None else int(ids[index])


def largest(values: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Indices of the ``count`` largest of ``values`` (all of them if fewer), largest first.

    Equal values rank by index, lowest first. Finds a lower bound first: the values are dealt into
    columns, and the count-th largest of the columns' maxima is at most the count-th largest value.
    """
    columns = len(values) // 32
    candidates = np.arange(len(values))
    if 0 < count < columns:
        dealt = values[: columns * 32].reshape(32, columns)
        maxima = dealt.max(axis=0)
        bound = np.partition(maxima, columns - count)[columns - count]
        candidates = np.flatnonzero(values >= bound)
    order = np.argsort(-values[candidates], kind="stable")[:count]
    return candidates[order]


def _weights(
    logits: NDArray[np.float32], peak: np.float32, temperature: float
) -> NDArray[np.float32]:
    """Probabilities up to a factor: exp((logit - peak) / temperature), the largest of them 1."""
    divisor = np.float32(max(temperature, _SMALLEST_TEMPERATURE))
    with np.errstate(over="ignore", under="ignore"):
        scaled = np.subtract(logits, peak)
        np.divide(scaled, divisor, out=scaled)
        return np.exp(scaled, out=scaled)


def _nucleus(weights: NDArray[np.float32], top_p: float) -> NDArray[np.int64]:
    """Indices, ascending, of the fewest largest weights whose sum reaches ``top_p`` of the total.

    At least one; equal weights rank by index. Nothing is sorted but the weights near the edge:
    first all those go that are so small that together they could not fill what top-p leaves out,
    then the rest is counted into bins by its leading bits, and the edge lies in one of them.
    """
    total = float(weights.sum(dtype=float))
    wanted = top_p * total
    candidates = np.flatnonzero(weights >= (total - wanted) / len(weights))
    values = weights[candidates]
    bins = values.view(np.uint32) >> _BIN_SHIFT  # positive floats order as their bits do
    reached = np.cumsum(np.bincount(bins, values)[::-1])  # the largest bin first
    edge = min(int(np.searchsorted(reached, wanted, side="left")), len(reached) - 1)
    still_wanted = wanted - (float(reached[edge - 1]) if edge else 0.0)
    edge_bin = len(reached) - 1 - edge
    at_edge = np.flatnonzero(bins == edge_bin)
    at_edge = at_edge[np.argsort(-values[at_edge], kind="stable")]
    needed = 1 + int(
        np.searchsorted(np.cumsum(values[at_edge], dtype=float), still_wanted, side="left")
    )
    kept = bins > edge_bin
    kept[at_edge[:needed]] = True
    return candidates[kept]


def _invert(weights: NDArray[np.float32], uniform: float) -> int:
    """The first index whose cumulative weight exceeds ``uniform`` times the total.

    Never one of weight zero, also where rounding carries the target up to the total. Runs of tokens
    are summed first, at the speed of memory; only one run is then walked token by token.
    """
    runs = np.add.reduceat(weights, np.arange(0, len(weights), _RUN_TOKENS), dtype=float)
    target = uniform * float(np.cumsum(runs)[-1])
    run, before = _first_beyond(runs, target)
    start = run * _RUN_TOKENS
    within = weights[start : start + _RUN_TOKENS]
    return start + _first_beyond(within, target - before)[0]


def _first_beyond(
    weights: NDArray[np.float32] | NDArray[np.float64], target: float
) -> tuple[int, float]:
    """The first index whose cumulative weight exceeds ``target``, and the sum of those before it.

    Where none does, the last one of positive weight.
    """
    cumulative = np.cumsum(weights, dtype=float)
    last = int(np.searchsorted(cumulative, cumulative[-1], side="left"))
    index = min(int(np.searchsorted(cumulative, target, side="right")), last)
    return index, float(cumulative[index - 1]) if index else 0.0
