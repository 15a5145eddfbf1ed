"""Llama: a pre-norm decoder with grouped-query attention, rotary positions and a SiLU gate."""

import numpy as np
from numpy.typing import NDArray

from kvikk.errors import ModelError
from kvikk.files.sources import ModelSource
from kvikk.models.decoder import (
    Attention,
    Decoder,
    DecoderLayer,
    FeedForward,
    Matrix,
    Rotation,
)
from kvikk.models.rotation import rope_parameters, rotation
from kvikk.models.weights import Weights
from kvikk.shapes import config as fields
from kvikk.shapes.config import Config
from kvikk.shapes.shape import ModelShape

_NAMES = {
    "embedding": ("model.embed_tokens.weight", "token_embd.weight"),
    "final_norm": ("model.norm.weight", "output_norm.weight"),
    "head": ("lm_head.weight", "output.weight"),
    "rotation_factors": ("", "rope_freqs.weight"),
    **{
        role: (f"model.layers.{{layer}}.{safetensors}.weight", f"blk.{{layer}}.{gguf}.weight")
        for role, safetensors, gguf in (
            ("attention_norm", "input_layernorm", "attn_norm"),
            ("query", "self_attn.q_proj", "attn_q"),
            ("key", "self_attn.k_proj", "attn_k"),
            ("value", "self_attn.v_proj", "attn_v"),
            ("output", "self_attn.o_proj", "attn_output"),
            ("feed_forward_norm", "post_attention_layernorm", "ffn_norm"),
            ("gate", "mlp.gate_proj", "ffn_gate"),
            ("up", "mlp.up_proj", "ffn_up"),
            ("down", "mlp.down_proj", "ffn_down"),
        )
    },
}


def load_llama(source: ModelSource, config: Config, shape: ModelShape) -> Decoder:
    """The decoder in ``source``, whose normalised configuration and shape are given.

    Raises ModelError if its tensors are not those of a Llama of this configuration.
    """
    if config["hidden_act"] != "silu":
        raise ModelError(f"a Llama with the activation {config['hidden_act']!r} is not supported")
    weights = Weights(source, _NAMES)
    hidden_size = fields.read_int(config, "hidden_size")
    embedding = weights.embedding(hidden_size)
    turning = _rotation(weights, config)
    layers = tuple(_layer(source, weights, config, turning, i) for i in range(shape.num_layers))
    head = embedding
    if not config["tie_word_embeddings"]:
        head = weights.matrix("head", embedding.rows, hidden_size)
    decoder = Decoder(
        name=source.name,
        family="llama",
        content_digest=source.content_digest(),
        context_tokens=shape.context_tokens,
        vocabulary_size=embedding.rows,
        hidden_size=hidden_size,
        norm_epsilon=fields.read_float(config, "rms_norm_eps"),
        embedding=embedding,
        embedding_scale=1.0,
        layers=layers,
        final_norm=weights.vector("final_norm", hidden_size),
        head=head,
        shape=shape,
    )
    # Old checkpoints store the frequencies too, and tied ones may store the head a second time.
    tied_head = ("lm_head.weight",) if head is embedding else ()
    weights.refuse_unused(ignored=("rotary_emb.inv_freq", *tied_head))
    return decoder


def _layer(
    source: ModelSource, weights: Weights, config: Config, turning: Rotation, index: int
) -> DecoderLayer:
    hidden_size = fields.read_int(config, "hidden_size")
    inner_size = fields.read_int(config, "intermediate_size")
    num_heads, num_kv_heads = fields.num_heads(config), fields.num_kv_heads(config)
    head_dim = fields.head_dim(config)

    def rotated(role: str, heads: int) -> Matrix:
        order = _half_split_rows(heads, head_dim) if source.is_gguf else None
        return weights.matrix(role, heads * head_dim, hidden_size, index, order)

    return DecoderLayer(
        attention_norm=weights.vector("attention_norm", hidden_size, index),
        attention=Attention(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            window_tokens=None,
            scale=head_dim**-0.5,
            rotation=turning,
            query=rotated("query", num_heads),
            key=rotated("key", num_kv_heads),
            value=weights.matrix("value", num_kv_heads * head_dim, hidden_size, index),
            output=weights.matrix("output", hidden_size, num_heads * head_dim, index),
        ),
        feed_forward_norm=weights.vector("feed_forward_norm", hidden_size, index),
        feed_forward=FeedForward(
            activation="silu",
            gate=weights.matrix("gate", inner_size, hidden_size, index),
            up=weights.matrix("up", inner_size, hidden_size, index),
            down=weights.matrix("down", hidden_size, inner_size, index),
        ),
    )


def _rotation(weights: Weights, config: Config) -> Rotation:
    head_dim = fields.head_dim(config)
    turning = rotation(rope_parameters(config), head_dim)
    if weights.has("rotation_factors"):
        # GGUF states Llama 3's stretching as what each frequency is divided by.
        factors = weights.vector("rotation_factors", head_dim // 2)
        turning = Rotation(head_dim, turning.inverse_frequencies / factors)
    return turning


def _half_split_rows(num_heads: int, head_dim: int) -> NDArray[np.int64]:
    """GGUF stores a Llama's query and key rows with the two halves of each head interleaved.

    file, one head     [ 0  h  1  h+1  2  h+2 … ]       h = head_dim / 2
    wanted             [ 0  1  2 … h  h+1  h+2 … ]
    so row i lies at   [ 0  2  4 … 1  3  5 … ]
    """
    one_head = np.arange(head_dim).reshape(-1, 2).T.reshape(-1)
    heads = np.arange(num_heads)[:, None] * head_dim
    order: NDArray[np.int64] = (heads + one_head).reshape(-1).astype(np.int64)
    return order
