"""Gemma 3's language model: windows and full attention interleaved, norms before and after."""

from math import sqrt

from kvikk.errors import ModelError
from kvikk.files.sources import ModelSource
from kvikk.models.decoder import (
    Attention,
    Decoder,
    DecoderLayer,
    FeedForward,
    FloatVector,
    Rotation,
)
from kvikk.models.rotation import rope_parameters, rotation
from kvikk.models.weights import Weights
from kvikk.shapes import config as fields
from kvikk.shapes.config import Config
from kvikk.shapes.shape import LayerCache, LayerKind, ModelShape

_NAMES = {
    "embedding": ("model.embed_tokens.weight", "token_embd.weight"),
    "final_norm": ("model.norm.weight", "output_norm.weight"),
    "head": ("lm_head.weight", "output.weight"),
    **{
        role: (f"model.layers.{{layer}}.{safetensors}.weight", f"blk.{{layer}}.{gguf}.weight")
        for role, safetensors, gguf in (
            ("attention_norm", "input_layernorm", "attn_norm"),
            ("query", "self_attn.q_proj", "attn_q"),
            ("query_norm", "self_attn.q_norm", "attn_q_norm"),
            ("key", "self_attn.k_proj", "attn_k"),
            ("key_norm", "self_attn.k_norm", "attn_k_norm"),
            ("value", "self_attn.v_proj", "attn_v"),
            ("output", "self_attn.o_proj", "attn_output"),
            ("attention_post_norm", "post_attention_layernorm", "post_attention_norm"),
            ("feed_forward_norm", "pre_feedforward_layernorm", "ffn_norm"),
            ("gate", "mlp.gate_proj", "ffn_gate"),
            ("up", "mlp.up_proj", "ffn_up"),
            ("down", "mlp.down_proj", "ffn_down"),
            ("feed_forward_post_norm", "post_feedforward_layernorm", "post_ffw_norm"),
        )
    },
}

# Options of the configuration that change what is computed, and that no published model turns on.
_REFUSED_OPTIONS = (
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "use_bidirectional_attention",
    "attention_bias",
)


def load_gemma3(source: ModelSource, config: Config, shape: ModelShape) -> Decoder:
    """The decoder in ``source``, whose normalised configuration and shape are given.

    Raises ModelError if its tensors are not those of a Gemma 3 of this configuration.
    """
    for option in _REFUSED_OPTIONS:
        if config.get(option):
            raise ModelError(f"a Gemma 3 with {option} is not supported")
    if config["hidden_activation"] != "gelu_pytorch_tanh":
        raise ModelError(
            f"a Gemma 3 with the activation {config['hidden_activation']!r} is not supported"
        )
    weights = Weights(source, _NAMES)
    hidden_size = fields.read_int(config, "hidden_size")
    embedding = weights.embedding(hidden_size)
    rotations = _rotations(config)
    head = embedding
    if not config["tie_word_embeddings"]:
        head = weights.matrix("head", embedding.rows, hidden_size)
    decoder = Decoder(
        name=source.name,
        family="gemma3_text",
        content_digest=source.content_digest(),
        context_tokens=shape.context_tokens,
        vocabulary_size=embedding.rows,
        hidden_size=hidden_size,
        norm_epsilon=fields.read_float(config, "rms_norm_eps"),
        embedding=embedding,
        embedding_scale=sqrt(hidden_size),
        layers=tuple(
            _layer(_Norms(source, weights), weights, config, cache, rotations[cache.kind], index)
            for index, cache in enumerate(shape.layers)
        ),
        final_norm=_Norms(source, weights)("final_norm", hidden_size),
        head=head,
        shape=shape,
    )
    weights.refuse_unused(ignored=("lm_head.weight",) if head is embedding else ())
    return decoder


class _Norms:
    """Norm weights, ready to multiply by: safetensors store them less one, GGUF as they are."""

    def __init__(self, source: ModelSource, weights: Weights) -> None:
        self._weights, self._missing = weights, 0.0 if source.is_gguf else 1.0

    def __call__(self, role: str, size: int, layer: int | None = None) -> FloatVector:
        weight: FloatVector = self._weights.vector(role, size, layer) + self._missing
        return weight


def _layer(
    norms: _Norms,
    weights: Weights,
    config: Config,
    cache: LayerCache,
    turning: Rotation,
    index: int,
) -> DecoderLayer:
    hidden_size = fields.read_int(config, "hidden_size")
    inner_size = fields.read_int(config, "intermediate_size")
    head_dim = fields.head_dim(config)
    query_rows = fields.num_heads(config) * head_dim
    key_rows = fields.num_kv_heads(config) * head_dim
    return DecoderLayer(
        attention_norm=norms("attention_norm", hidden_size, index),
        attention=Attention(
            num_heads=fields.num_heads(config),
            num_kv_heads=fields.num_kv_heads(config),
            head_dim=head_dim,
            window_tokens=cache.window_tokens,
            scale=fields.read_float(config, "query_pre_attn_scalar") ** -0.5,
            rotation=turning,
            query=weights.matrix("query", query_rows, hidden_size, index),
            key=weights.matrix("key", key_rows, hidden_size, index),
            value=weights.matrix("value", key_rows, hidden_size, index),
            output=weights.matrix("output", hidden_size, query_rows, index),
            query_norm=norms("query_norm", head_dim, index),
            key_norm=norms("key_norm", head_dim, index),
        ),
        attention_post_norm=norms("attention_post_norm", hidden_size, index),
        feed_forward_norm=norms("feed_forward_norm", hidden_size, index),
        feed_forward=FeedForward(
            activation="gelu_tanh",
            gate=weights.matrix("gate", inner_size, hidden_size, index),
            up=weights.matrix("up", inner_size, hidden_size, index),
            down=weights.matrix("down", hidden_size, inner_size, index),
        ),
        feed_forward_post_norm=norms("feed_forward_post_norm", hidden_size, index),
    )


def _rotations(config: Config) -> dict[LayerKind, Rotation]:
    """Sliding layers turn by a faster, never stretched clock of their own."""
    head_dim = fields.head_dim(config)
    if isinstance(config.get("rope_parameters"), dict):
        sliding = rope_parameters(config, "sliding_attention")
    else:
        sliding = {"rope_theta": config["rope_local_base_freq"]}
    return {
        LayerKind.FULL: rotation(rope_parameters(config, "full_attention"), head_dim),
        LayerKind.SLIDING: rotation(sliding, head_dim),
    }
