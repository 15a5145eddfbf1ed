"""Gemma 2 and 3: windows and full attention interleaved, norms before and after each half."""

from math import sqrt

from kvikk.files.sources import ModelSource
from kvikk.models.decoder import Decoder, DecoderLayer, Rotation
from kvikk.models.reader import LLAMA_NAMES, Reader, layer_names
from kvikk.models.rotation import rotation
from kvikk.shapes import config as fields
from kvikk.shapes.config import Config
from kvikk.shapes.shape import LayerKind, ModelShape

_NAMES = {
    **LLAMA_NAMES,
    **layer_names(
        attention_post_norm=("post_attention_layernorm", "post_attention_norm"),
        feed_forward_norm=("pre_feedforward_layernorm", "ffn_norm"),
        feed_forward_post_norm=("post_feedforward_layernorm", "post_ffw_norm"),
    ),
}


def load_gemma2(source: ModelSource, config: Config, shape: ModelShape) -> Decoder:
    """The decoder in ``source``: Gemma 2, which caps scores and logits.

    Raises ModelError if its tensors are not those of a Gemma 2 of this configuration.
    """
    reader = _reader(source, config, shape)
    turning = reader.rotation()
    return _decoder(reader, [_layer(reader, index, turning) for index in range(shape.num_layers)])


def load_gemma3(source: ModelSource, config: Config, shape: ModelShape) -> Decoder:
    """The decoder in ``source``: Gemma 3's language model, which norms queries and keys instead.

    Raises ModelError if its tensors are not those of a Gemma 3 of this configuration.
    """
    reader = _reader(source, config, shape)
    # Stated by no published model, and ignored by transformers.
    reader.refuse_options("attn_logit_softcapping")
    turning = _rotations(reader)
    layers = [
        _layer(
            reader,
            index,
            turning[cache.kind],
            query_norm=reader.norm("query_norm", reader.head_dim, index),
            key_norm=reader.norm("key_norm", reader.head_dim, index),
        )
        for index, cache in enumerate(shape.layers)
    ]
    return _decoder(reader, layers)


def _reader(source: ModelSource, config: Config, shape: ModelShape) -> Reader:
    # Norm weights are stored less one in safetensors, as they are in GGUF.
    reader = Reader(source, config, shape, names=_NAMES, norm_offset=0.0 if source.is_gguf else 1.0)
    reader.refuse_options("use_bidirectional_attention", "attention_bias")
    return reader


def _layer(reader: Reader, index: int, turning: Rotation, **changes: object) -> DecoderLayer:
    size = reader.hidden_size
    return DecoderLayer(
        attention_norm=reader.norm("attention_norm", size, index),
        attention=reader.attention(
            index,
            turning,
            scale=fields.read_float(reader.config, "query_pre_attn_scalar") ** -0.5,
            score_cap=_cap(reader.config, "attn_logit_softcapping"),
            **changes,
        ),
        attention_post_norm=reader.norm("attention_post_norm", size, index),
        feed_forward_norm=reader.norm("feed_forward_norm", size, index),
        feed_forward=reader.feed_forward(index),
        feed_forward_post_norm=reader.norm("feed_forward_post_norm", size, index),
    )


def _decoder(reader: Reader, layers: list[DecoderLayer]) -> Decoder:
    return reader.decoder(
        layers,
        embedding_scale=sqrt(reader.hidden_size),
        logit_cap=_cap(reader.config, "final_logit_softcapping"),
    )


def _cap(config: Config, name: str) -> float | None:
    return None if config.get(name) is None else fields.read_float(config, name)


def _rotations(reader: Reader) -> dict[LayerKind, Rotation]:
    """Gemma 3's sliding layers turn by a faster, never stretched clock of their own."""
    if isinstance(reader.config.get("rope_parameters"), dict):
        sliding = reader.rotation("sliding_attention")
    else:
        theta = {"rope_theta": reader.config["rope_local_base_freq"]}
        sliding = rotation(theta, reader.head_dim, reader.shape.context_tokens)
    return {LayerKind.FULL: reader.rotation("full_attention"), LayerKind.SLIDING: sliding}
