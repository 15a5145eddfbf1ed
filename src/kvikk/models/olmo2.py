"""OLMo 2: norms behind each half of a layer and none before, queries and keys normed whole."""

from kvikk.files.sources import ModelSource
from kvikk.models.decoder import Decoder, DecoderLayer, Rotation
from kvikk.models.reader import LLAMA_NAMES, QUERY_KEY_VALUE, Reader, layer_names
from kvikk.shapes.config import Config
from kvikk.shapes.shape import ModelShape

_NAMES = {
    **LLAMA_NAMES,
    **layer_names(
        attention_post_norm=("post_attention_layernorm", "post_attention_norm"),
        feed_forward_post_norm=("post_feedforward_layernorm", "post_ffw_norm"),
    ),
}


def load_olmo2(source: ModelSource, config: Config, shape: ModelShape) -> Decoder:
    """The decoder in ``source``, whose normalised configuration and shape are given.

    Raises ModelError if its tensors are not those of an OLMo 2 of this configuration.
    """
    biased = {*QUERY_KEY_VALUE, "output"} if config.get("attention_bias") else ()
    reader = Reader(source, config, shape, names=_NAMES, biased=biased)
    turning = reader.rotation()
    return reader.decoder([_layer(reader, index, turning) for index in range(shape.num_layers)])


def _layer(reader: Reader, index: int, turning: Rotation) -> DecoderLayer:
    query_rows = reader.num_heads * reader.head_dim
    key_rows = reader.num_kv_heads * reader.head_dim
    return DecoderLayer(
        attention_norm=None,
        attention=reader.attention(
            index,
            turning,
            query_norm=reader.norm("query_norm", query_rows, index),
            key_norm=reader.norm("key_norm", key_rows, index),
        ),
        attention_post_norm=reader.norm("attention_post_norm", reader.hidden_size, index),
        feed_forward_norm=None,
        feed_forward=reader.feed_forward(index),
        feed_forward_post_norm=reader.norm("feed_forward_post_norm", reader.hidden_size, index),
    )
