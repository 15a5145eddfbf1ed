"""How likely tokens are, in numpy: what every backend without a better way uses."""

import numpy as np
from numpy.typing import NDArray

from kvikk.backends.base import Logprobs
from kvikk.backends.sampling import largest


def logprobs(logits: NDArray[np.float32], token_ids: NDArray[np.int64], num_top: int) -> Logprobs:
    """Log-probabilities of one token a row, and of the ``num_top`` likeliest.

    ``logits`` is ``[R, V]``, ``token_ids`` ``[R]``. Each row's depend on that row alone.
    """
    num_rows, num_top = len(logits), min(num_top, logits.shape[1])
    chosen = np.empty(num_rows)
    ranks = np.empty(num_rows, np.int64)
    top_ids = np.empty((num_rows, num_top), np.int64)
    top = np.empty((num_rows, num_top))
    for row, (values, token_id) in enumerate(zip(logits, token_ids.tolist(), strict=True)):
        peak = values.max()
        with np.errstate(under="ignore"):
            total = np.exp(values - peak).sum(dtype=float)
        shift = float(peak) + float(np.log(total))
        mine = values[token_id]
        chosen[row] = float(mine) - shift
        equal_before = np.count_nonzero(values[:token_id] == mine)
        ranks[row] = 1 + np.count_nonzero(values > mine) + equal_before
        top_ids[row] = largest(values, num_top)
        top[row] = values[top_ids[row]].astype(float) - shift
    return Logprobs(chosen, ranks, top_ids, top)
