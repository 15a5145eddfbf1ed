"""The arithmetic of a decoder in numpy float32, one function an idea."""

from math import erf

import numpy as np
from numpy.typing import NDArray

from kvikk.models.decoder import Activation, Norm, Rotation

Floats = NDArray[np.float32]


def normed(x: Floats, norm: Norm, epsilon: float) -> Floats:
    """``x`` over the root of the mean of its squares along the last axis, times the weight.

    A LayerNorm, known by its bias, takes the mean out first and adds the bias last.
    """
    if norm.bias is not None:
        x = x - np.mean(x, axis=-1, keepdims=True)
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    scaled: Floats = x / np.sqrt(mean_square + np.float32(epsilon)) * norm.weight
    return scaled if norm.bias is None else scaled + norm.bias


def rotate(x: Floats, positions: NDArray[np.int32], rotation: Rotation) -> Floats:
    """Rotary position embedding of ``x`` ``[T, heads, head_dim]``.

    Element i and element i + half are one point in the plane; it is turned by the position times
    frequency i, in float32, and stretched. Elements beyond the rotation's dimensions stay as they
    are.
    """
    half = rotation.dimensions // 2
    angles = positions[:, None, None].astype(np.float32) * rotation.inverse_frequencies
    stretch = np.float32(rotation.stretch)
    cosine, sine = np.cos(angles) * stretch, np.sin(angles) * stretch
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate(
        [first * cosine - second * sine, second * cosine + first * sine, rest], axis=-1
    )


def activate(x: Floats, activation: Activation) -> Floats:
    """A feed-forward network's non-linearity."""
    if activation == "silu":
        # At large negative x the exponential overflows to infinity and the quotient is rightly 0.
        with np.errstate(over="ignore"):
            silu: Floats = x / (1 + np.exp(-x))
        return silu
    if activation == "gelu":
        exact: Floats = x * (0.5 + 0.5 * _erf(x * np.sqrt(0.5))).astype(np.float32)
        return exact
    # GELU in its tanh form; Hendrycks & Gimpel, arXiv:1606.08415.
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    gelu: Floats = np.float32(0.5) * x * (1 + np.tanh(inner))
    return gelu


_erf = np.frompyfunc(erf, 1, 1)


def capped(x: Floats, cap: float | None) -> Floats:
    """``x`` bent to stay below ``cap``, smoothly; as it is where there is none."""
    return x if cap is None else np.float32(cap) * np.tanh(x / np.float32(cap))


def softmax(x: Floats) -> Floats:
    """Along the last axis: what is positive and adds up to 1."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    shares: Floats = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def attend(
    queries: Floats,
    keys: Floats,
    values: Floats,
    mask: Floats,
    scale: float,
    score_cap: float | None = None,
) -> Floats:
    """Attention of one sequence's tokens to what they may look at.

    ``queries`` ``[T, heads, head_dim]``; ``keys`` and ``values`` ``[C, kv_heads, head_dim]``;
    ``mask`` ``[T, C]``, added to the scores. Returns ``[T, heads, head_dim]``. Consecutive query
    heads share a key/value head.
    """
    num_tokens, num_heads, head_dim = queries.shape
    num_kv_heads = keys.shape[1]
    # [kv_heads, sharing heads, T, head_dim] by [kv_heads, 1, head_dim, C]
    grouped: Floats = (queries * np.float32(scale)).reshape(num_tokens, num_kv_heads, -1, head_dim)
    products: Floats = grouped.transpose(1, 2, 0, 3) @ keys.transpose(1, 2, 0)[:, None]
    scores = capped(products, score_cap)
    scores += mask
    scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores, out=scores)
    mixed: Floats = weights @ values.transpose(1, 0, 2)[:, None]
    mixed /= weights.sum(axis=-1, keepdims=True)
    return mixed.transpose(2, 0, 1, 3).reshape(num_tokens, num_heads, head_dim)
