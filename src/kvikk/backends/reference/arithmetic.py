"""The arithmetic of a decoder in numpy float32, one function an idea."""

import numpy as np
from numpy.typing import NDArray

from kvikk.models.decoder import Activation, Rotation

Floats = NDArray[np.float32]


def rms_norm(x: Floats, weight: Floats, epsilon: float) -> Floats:
    """``x`` over the root of the mean of its squares along the last axis, times ``weight``."""
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    normed: Floats = x / np.sqrt(mean_square + np.float32(epsilon)) * weight
    return normed


def rotate(x: Floats, positions: NDArray[np.int32], rotation: Rotation) -> Floats:
    """Rotary position embedding of ``x`` ``[T, heads, head_dim]``.

    Element i and element i + half are one point in the plane; it is turned by the position times
    frequency i, in float32. Elements beyond the rotation's dimensions stay as they are.
    """
    half = rotation.dimensions // 2
    angles = positions[:, None, None].astype(np.float32) * rotation.inverse_frequencies
    cosine, sine = np.cos(angles), np.sin(angles)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate(
        [first * cosine - second * sine, second * cosine + first * sine, rest], axis=-1
    )


def activate(x: Floats, activation: Activation) -> Floats:
    """The gate's non-linearity."""
    if activation == "silu":
        # At large negative x the exponential overflows to infinity and the quotient is rightly 0.
        with np.errstate(over="ignore"):
            silu: Floats = x / (1 + np.exp(-x))
        return silu
    # GELU in its tanh form; Hendrycks & Gimpel, arXiv:1606.08415.
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    gelu: Floats = np.float32(0.5) * x * (1 + np.tanh(inner))
    return gelu


def attend(queries: Floats, keys: Floats, values: Floats, mask: Floats, scale: float) -> Floats:
    """Attention of one sequence's tokens to what they may look at.

    ``queries`` ``[T, heads, head_dim]``; ``keys`` and ``values`` ``[C, kv_heads, head_dim]``;
    ``mask`` ``[T, C]``, added to the scores. Returns ``[T, heads, head_dim]``. Consecutive query
    heads share a key/value head.
    """
    num_tokens, num_heads, head_dim = queries.shape
    num_kv_heads = keys.shape[1]
    # [kv_heads, sharing heads, T, head_dim] by [kv_heads, 1, head_dim, C]
    grouped = (queries * np.float32(scale)).reshape(num_tokens, num_kv_heads, -1, head_dim)
    scores = grouped.transpose(1, 2, 0, 3) @ keys.transpose(1, 2, 0)[:, None]
    scores += mask
    scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores, out=scores)
    mixed: Floats = weights @ values.transpose(1, 0, 2)[:, None]
    mixed /= weights.sum(axis=-1, keepdims=True)
    return mixed.transpose(2, 0, 1, 3).reshape(num_tokens, num_heads, head_dim)
