"""What the readers of all families share: from a file's tensors to the parts of a decoder.

A family's own file says what is special about it; where nothing is, the methods here read a
pre-norm decoder with grouped-query attention, rotary positions and a gate: a Llama.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvikk.errors import ModelError
from kvikk.files.sources import ModelSource
from kvikk.models.decoder import (
    Activation,
    Attention,
    Decoder,
    DecoderLayer,
    FeedForward,
    Matrix,
    Mixture,
    Norm,
    Rotation,
)
from kvikk.models.rotation import longest_context, rope_parameters, rotation
from kvikk.models.weights import Weights
from kvikk.shapes import config as fields
from kvikk.shapes.config import Config
from kvikk.shapes.shape import ModelShape
from kvikk.shapes.weights.feed_forward import num_experts

# What configurations call the activations that are known.
ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def layer_names(**roles: tuple[str, str]) -> dict[str, tuple[str, str]]:
    """Roles in a layer by their names in safetensors and in GGUF, with what stands around these."""
    return {
        role: (f"model.layers.{{layer}}.{safetensors}.weight", f"blk.{{layer}}.{gguf}.weight")
        for role, (safetensors, gguf) in roles.items()
    }


LLAMA_NAMES: Mapping[str, tuple[str, str]] = {
    "embedding": ("model.embed_tokens.weight", "token_embd.weight"),
    "final_norm": ("model.norm.weight", "output_norm.weight"),
    "head": ("lm_head.weight", "output.weight"),
    "rotation_factors": ("", "rope_freqs.weight"),
    **layer_names(
        attention_norm=("input_layernorm", "attn_norm"),
        query=("self_attn.q_proj", "attn_q"),
        query_norm=("self_attn.q_norm", "attn_q_norm"),
        key=("self_attn.k_proj", "attn_k"),
        key_norm=("self_attn.k_norm", "attn_k_norm"),
        value=("self_attn.v_proj", "attn_v"),
        output=("self_attn.o_proj", "attn_output"),
        feed_forward_norm=("post_attention_layernorm", "ffn_norm"),
        gate=("mlp.gate_proj", "ffn_gate"),
        up=("mlp.up_proj", "ffn_up"),
        down=("mlp.down_proj", "ffn_down"),
    ),
}
QUERY_KEY_VALUE = frozenset({"query", "key", "value"})


class Reader:
    """Reads the parts of one model. Every method raises ModelError for what does not fit.

    ``biased`` names the roles whose matrices have a bias. ``norm_offset`` is what stored norm
    weights lack. ``interleaved`` says that the rows of queries and keys are stored with the two
    halves of each head interleaved, as some families are in GGUF.
    """

    def __init__(
        self,
        source: ModelSource,
        config: Config,
        shape: ModelShape,
        *,
        names: Mapping[str, tuple[str, str]] = LLAMA_NAMES,
        prefix: str = "",
        biased: Collection[str] = (),
        norm_offset: float = 0.0,
        interleaved: bool = False,
    ) -> None:
        self.source, self.config, self.shape = source, config, shape
        self.weights = Weights(source, names, prefix)
        self.hidden_size = fields.read_int(config, "hidden_size", "n_embd")
        self.num_heads, self.num_kv_heads = fields.num_heads(config), fields.num_kv_heads(config)
        self.head_dim = fields.head_dim(config)
        self._biased, self._norm_offset, self._interleaved = biased, norm_offset, interleaved

    def refuse_options(self, *options: str) -> None:
        """Refuse options of the configuration that change what is computed and are not computed."""
        for option in options:
            if self.config.get(option):
                raise ModelError(
                    f"a model of type {self.shape.model_type!r} with {option} is not supported"
                )

    def activation(self, *names: str) -> Activation:
        """The activation that the first of these fields names."""
        name = next((self.config[name] for name in names if self.config.get(name)), "silu")
        if name not in ACTIVATIONS:
            raise ModelError(
                f"a model of type {self.shape.model_type!r} with the activation {name!r} "
                f"is not supported; known: {', '.join(ACTIVATIONS)}"
            )
        return ACTIVATIONS[name]

    def rotation(self, layer_type: str | None = None) -> Rotation:
        """How queries and keys turn, in all layers or in those of one type."""
        parameters = rope_parameters(self.config, layer_type)
        turning = rotation(parameters, self.head_dim, self.shape.context_tokens)
        if not self.weights.has("rotation_factors"):
            return turning
        # GGUF states Llama 3's stretching as what each frequency is divided by.
        factors = self.weights.vector("rotation_factors", turning.dimensions // 2)
        return replace(turning, inverse_frequencies=turning.inverse_frequencies / factors)

    @property
    def context_tokens(self) -> int:
        """The positions that the model's rotation reaches."""
        return longest_context(rope_parameters(self.config), self.shape.context_tokens)

    def norm(self, role: str, size: int, layer: int | None = None) -> Norm:
        """An RMS norm, ready to multiply by."""
        return Norm(self.weights.vector(role, size, layer) + np.float32(self._norm_offset))

    def layer_norm(self, role: str, size: int, layer: int | None = None) -> Norm:
        """A LayerNorm."""
        return Norm(self.weights.vector(role, size, layer), self.weights.bias(role, size, layer))

    def matrix(self, role: str, rows: int, columns: int, layer: int) -> Matrix:
        """A matrix with its bias, if this role has one."""
        order = None
        if self._interleaved and role in ("query", "key"):
            order = _half_split_rows(rows // self.head_dim, self.head_dim)
        bias = None
        if role in self._biased:
            bias = self.weights.bias(role, rows, layer)
            bias = bias if order is None else bias[order]
        return self.weights.matrix(role, rows, columns, layer, order, bias)

    def attention(self, layer: int, turning: Rotation | None, **changes: Any) -> Attention:
        """A layer's attention; ``changes`` are fields that are not as in a Llama."""
        query_rows = self.num_heads * self.head_dim
        key_rows = self.num_kv_heads * self.head_dim
        described: dict[str, Any] = {
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "window_tokens": self.shape.layers[layer].window_tokens,
            "scale": self.head_dim**-0.5,
            "rotation": turning,
            **changes,
        }
        if "query" not in changes:
            described["query"] = self.matrix("query", query_rows, self.hidden_size, layer)
            described["key"] = self.matrix("key", key_rows, self.hidden_size, layer)
            described["value"] = self.matrix("value", key_rows, self.hidden_size, layer)
        described["output"] = self.matrix("output", self.hidden_size, query_rows, layer)
        return Attention(**described)

    def feed_forward(self, layer: int) -> FeedForward:
        """A layer's gated feed-forward network."""
        hidden_size, inner_size = self.hidden_size, self.inner_size
        return FeedForward(
            self.activation("hidden_act", "hidden_activation"),
            gate=self.matrix("gate", inner_size, hidden_size, layer),
            up=self.matrix("up", inner_size, hidden_size, layer),
            down=self.matrix("down", hidden_size, inner_size, layer),
        )

    def mixture(self, layer: int, inner_size: int, is_renormalised: bool) -> Mixture:
        """A layer's experts, ``inner_size`` wide each."""
        count = num_experts(self.config)
        num_used = fields.read_int(self.config, "num_experts_per_tok")
        if num_used > count:
            raise ModelError(f"num_experts_per_tok is {num_used}; there are {count} experts")
        activation, hidden_size = self.activation("hidden_act"), self.hidden_size
        gates, ups, downs = (
            self.weights.experts(f"expert_{role}", count, rows, columns, layer)
            for role, rows, columns in (
                ("gate", inner_size, hidden_size),
                ("up", inner_size, hidden_size),
                ("down", hidden_size, inner_size),
            )
        )
        return Mixture(
            router=self.weights.matrix("router", count, hidden_size, layer),
            experts=tuple(
                FeedForward(activation, gate, up, down)
                for gate, up, down in zip(gates, ups, downs, strict=True)
            ),
            num_used=num_used,
            is_renormalised=is_renormalised,
        )

    @property
    def inner_size(self) -> int:
        """Width of the feed-forward network."""
        return fields.read_int(self.config, "intermediate_size")

    def layer(
        self,
        index: int,
        turning: Rotation | None,
        network: FeedForward | Mixture | None = None,
        **changes: Any,
    ) -> DecoderLayer:
        """A pre-norm layer, its feed-forward network a Llama's unless one is given.

        ``changes`` are fields of its attention.
        """
        return DecoderLayer(
            attention_norm=self.norm("attention_norm", self.hidden_size, index),
            attention=self.attention(index, turning, **changes),
            feed_forward_norm=self.norm("feed_forward_norm", self.hidden_size, index),
            feed_forward=network or self.feed_forward(index),
        )

    def decoder(
        self,
        layers: Collection[DecoderLayer],
        *,
        final_norm: Norm | None = None,
        ignored: tuple[str, ...] = (),
        **changes: Any,
    ) -> Decoder:
        """The whole model from its layers.

        Tensors that end in one of ``ignored`` change nothing and may stay unread.
        """
        embedding = self.weights.embedding(self.hidden_size)
        head = embedding
        if not self.config.get("tie_word_embeddings"):
            head = self.weights.matrix("head", embedding.rows, self.hidden_size)
        described: dict[str, Any] = {
            "context_tokens": self.context_tokens,
            "norm_epsilon": fields.read_float(self.config, "rms_norm_eps", 1e-6),
            "embedding_scale": 1.0,
            **changes,
        }
        decoder = Decoder(
            name=self.source.name,
            family=self.shape.model_type,
            content_digest=self.source.content_digest(),
            vocabulary_size=embedding.rows,
            hidden_size=self.hidden_size,
            embedding=embedding,
            layers=tuple(layers),
            final_norm=final_norm or self.norm("final_norm", self.hidden_size),
            head=head,
            shape=self.shape,
            **described,
        )
        # Tied models may store the head a second time, old ones the rotation's frequencies.
        tied_head = ("lm_head.weight",) if head is embedding else ()
        self.weights.refuse_unused(ignored=("rotary_emb.inv_freq", *tied_head, *ignored))
        return decoder


def _half_split_rows(num_heads: int, head_dim: int) -> NDArray[np.int64]:
    """Where the rows of heads lie whose two halves are stored interleaved.

    file, one head     [ 0  h  1  h+1  2  h+2 … ]       h = head_dim / 2
    wanted             [ 0  1  2 … h  h+1  h+2 … ]
    so row i lies at   [ 0  2  4 … 1  3  5 … ]
    """
    one_head = np.arange(head_dim).reshape(-1, 2).T.reshape(-1)
    heads = np.arange(num_heads)[:, None] * head_dim
    order: NDArray[np.int64] = (heads + one_head).reshape(-1).astype(np.int64)
    return order
