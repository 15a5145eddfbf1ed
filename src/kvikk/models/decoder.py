"""A decoder described as data: what a backend needs to know to run a model, and nothing about how.

Every family is read into these records; no backend knows a family's name. Vectors are float32 and
ready to use (a family that stores ``weight - 1`` has been corrected by its reader); matrices stay
as they lie in the file.

One layer, for hidden state x of one token:

    x += post_norm(attention(attention_norm(x)))         each norm only where it is set
    x += post_norm(feed_forward(feed_forward_norm(x)))
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvikk.files.quantization import dequantize, dequantize_rows
from kvikk.files.tensors import Tensor
from kvikk.shapes.shape import ModelShape

Activation = Literal["silu", "gelu_tanh", "gelu"]
FloatVector = NDArray[np.float32]


@dataclass(frozen=True)
class Matrix:
    """A linear map, ``outputs = matrix @ inputs + bias``, of shape ``(rows, columns)``.

    ``row_order`` undoes a file format's permutation: row i of the matrix is row ``row_order[i]`` of
    the tensor. ``bias``, ``[rows]``, is in the matrix's own order.
    """

    tensor: Tensor
    row_order: NDArray[np.int64] | None = None
    bias: FloatVector | None = None

    @property
    def rows(self) -> int:
        """Number of outputs."""
        return self.tensor.shape[0]

    @property
    def columns(self) -> int:
        """Number of inputs."""
        return self.tensor.shape[1]

    def float32(self) -> NDArray[np.float32]:
        """The whole matrix, dequantised, ``[rows, columns]``, without the bias; a fresh array."""
        values = dequantize(self.tensor)
        return values if self.row_order is None else values[self.row_order]

    def take(self, rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """Some rows, dequantised, ``[len(rows), columns]``; the others are not touched."""
        in_file = rows if self.row_order is None else self.row_order[rows]
        return dequantize_rows(self.tensor, in_file)

    def split(self, sizes: Sequence[int]) -> "list[Matrix]":
        """Matrices of ``sizes`` rows each that lie in this one, one after another.

        Only for one whose rows lie in their own order. Nothing is copied.
        """
        assert self.row_order is None
        assert sum(sizes) == self.rows
        rows = self.tensor.data.reshape(self.rows, -1)
        parts, start = [], 0
        for size in sizes:
            data = rows[start : start + size].reshape(-1)
            tensor = replace(self.tensor, shape=(size, self.columns), data=data)
            bias = None if self.bias is None else self.bias[start : start + size]
            parts.append(Matrix(tensor, bias=bias))
            start += size
        return parts


@dataclass(frozen=True)
class Norm:
    """``x`` over the root of its mean square, times ``weight``: an RMS norm.

    With a ``bias`` it is a LayerNorm: the mean is taken out first, the bias added last.
    """

    weight: FloatVector
    bias: FloatVector | None = None


@dataclass(frozen=True)
class Rotation:
    """Rotary position embedding, half-split: element i turns with element i + dimensions / 2.

    Elements from ``dimensions`` on stay as they are. ``inverse_frequencies`` is
    ``[dimensions / 2]``, in radians per position. An angle is position times frequency *in
    float32*: models are trained with angles rounded so, and at position 3,000 an exact angle is
    1e-4 radians off, which moves a logit by 1e-3. What is turned also grows by ``stretch``.
    """

    dimensions: int
    inverse_frequencies: NDArray[np.float32]
    stretch: float = 1.0


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention: ``num_heads / num_kv_heads`` query heads read one key/value head.

    ``window_tokens`` None means every earlier token; else position p attends to
    p - window_tokens + 1 … p. Scores are multiplied by ``scale`` and then, where ``score_cap`` is
    set, bent to stay below it: ``cap * tanh(score / cap)``. The norms, where set, come before the
    rotation and run over each head's vector ``[head_dim]``, or, where they are as long as that,
    over all heads together.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window_tokens: int | None
    scale: float
    rotation: Rotation | None
    query: Matrix
    key: Matrix
    value: Matrix
    output: Matrix
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    score_cap: float | None = None


@dataclass(frozen=True)
class FeedForward:
    """``down @ (activation(gate @ x) * (up @ x))``.

    Without a gate it is ``down @ activation(up @ x)``.
    """

    activation: Activation
    gate: Matrix | None
    up: Matrix
    down: Matrix


@dataclass(frozen=True)
class Mixture:
    """A mixture of experts: ``Σ p[e] * experts[e](x)`` over the ``num_used`` with the largest p.

    ``p = softmax(router @ x)`` over all experts, of equal ones the lower number first; where
    ``is_renormalised``, divided by the sum of those used. The sum runs in the experts' order.
    """

    router: Matrix
    experts: tuple[FeedForward, ...]
    num_used: int
    is_renormalised: bool


@dataclass(frozen=True)
class DecoderLayer:
    """One layer: what is normed is ``[hidden_size]``."""

    attention_norm: Norm | None
    attention: Attention
    feed_forward_norm: Norm | None
    feed_forward: FeedForward | Mixture
    attention_post_norm: Norm | None = None
    feed_forward_post_norm: Norm | None = None


@dataclass(frozen=True)
class Decoder:
    """A whole model.

    ``content_digest`` is SHA-256 over the model's files: what it is, not what it is called.
    ``embedding`` is ``[vocabulary_size, hidden_size]``, its rows multiplied by ``embedding_scale``;
    ``position_embedding``, ``[context_tokens, hidden_size]``, is added where a model has one.
    ``norm_epsilon`` is added to mean squares. ``head`` is the embedding where the model ties them;
    logits stay below ``logit_cap`` as scores below theirs.
    """

    name: str
    family: str
    content_digest: bytes
    context_tokens: int
    vocabulary_size: int
    hidden_size: int
    norm_epsilon: float
    embedding: Matrix
    embedding_scale: float
    layers: tuple[DecoderLayer, ...]
    final_norm: Norm
    head: Matrix
    shape: ModelShape
    position_embedding: Matrix | None = None
    logit_cap: float | None = None
