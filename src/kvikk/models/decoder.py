"""A decoder described as data: what a backend needs to know to run a model, and nothing about how.

Every family is read into these records; no backend knows a family's name. Vectors are float32 and
ready to use (a family that stores ``weight - 1`` has been corrected by its reader); matrices stay
as they lie in the file.

One layer, for hidden state x of one token:

    x += post_norm(attention(attention_norm(x)))         post norms only where they are set
    x += post_norm(feed_forward(feed_forward_norm(x)))
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvikk.files.quantization import dequantize, dequantize_rows
from kvikk.files.tensors import Tensor
from kvikk.shapes.shape import ModelShape

Activation = Literal["silu", "gelu_tanh"]
FloatVector = NDArray[np.float32]


@dataclass(frozen=True)
class Matrix:
    """A linear map, ``outputs = matrix @ inputs``, of shape ``(rows, columns)``.

    ``row_order`` undoes a file format's permutation: row i of the matrix is row ``row_order[i]`` of
    the tensor.
    """

    tensor: Tensor
    row_order: NDArray[np.int64] | None = None

    @property
    def rows(self) -> int:
        """Number of outputs."""
        return self.tensor.shape[0]

    @property
    def columns(self) -> int:
        """Number of inputs."""
        return self.tensor.shape[1]

    def float32(self) -> NDArray[np.float32]:
        """The whole matrix, dequantised, ``[rows, columns]``; a fresh array."""
        values = dequantize(self.tensor)
        return values if self.row_order is None else values[self.row_order]

    def take(self, rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """Some rows, dequantised, ``[len(rows), columns]``; the others are not touched."""
        in_file = rows if self.row_order is None else self.row_order[rows]
        return dequantize_rows(self.tensor, in_file)


@dataclass(frozen=True)
class Rotation:
    """Rotary position embedding, half-split: element i turns with element i + dimensions / 2.

    ``inverse_frequencies`` is ``[dimensions / 2]``, in radians per position. An angle is position
    times frequency *in float32*: models are trained with angles rounded so, and at position 3,000
    an exact angle is 1e-4 radians off, which moves a logit by 1e-3.
    """

    dimensions: int
    inverse_frequencies: NDArray[np.float32]


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention: ``num_heads / num_kv_heads`` query heads read one key/value head.

    ``window_tokens`` None means every earlier token; else position p attends to
    p - window_tokens + 1 … p. Scores are multiplied by ``scale``. The norms, where set, are RMS
    norms over each head's vector ``[head_dim]``, before the rotation.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window_tokens: int | None
    scale: float
    rotation: Rotation
    query: Matrix
    key: Matrix
    value: Matrix
    output: Matrix
    query_norm: FloatVector | None = None
    key_norm: FloatVector | None = None


@dataclass(frozen=True)
class FeedForward:
    """A gated feed-forward network: ``down @ (activation(gate @ x) * (up @ x))``."""

    activation: Activation
    gate: Matrix
    up: Matrix
    down: Matrix


@dataclass(frozen=True)
class DecoderLayer:
    """One layer: norms are RMS weights ``[hidden_size]``."""

    attention_norm: FloatVector
    attention: Attention
    feed_forward_norm: FloatVector
    feed_forward: FeedForward
    attention_post_norm: FloatVector | None = None
    feed_forward_post_norm: FloatVector | None = None


@dataclass(frozen=True)
class Decoder:
    """A whole model.

    ``content_digest`` is SHA-256 over the model's files: what it is, not what it is called.
    ``embedding`` is ``[vocabulary_size, hidden_size]``, its rows multiplied by ``embedding_scale``.
    ``head`` is the same matrix where the model ties them.
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
    final_norm: FloatVector
    head: Matrix
    shape: ModelShape
