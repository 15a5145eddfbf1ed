"""Phi 3 and Phi 4: a Llama whose matrices of one input are stored as one."""

from kvikk.files.sources import ModelSource
from kvikk.models.decoder import Decoder, DecoderLayer, FeedForward, Rotation
from kvikk.models.reader import LLAMA_NAMES, Reader, layer_names
from kvikk.shapes.config import Config
from kvikk.shapes.shape import ModelShape

_NAMES = {
    **LLAMA_NAMES,
    **layer_names(
        query_key_value=("self_attn.qkv_proj", "attn_qkv"),
        gate_up=("mlp.gate_up_proj", "ffn_up"),
    ),
}


def load_phi3(source: ModelSource, config: Config, shape: ModelShape) -> Decoder:
    """The decoder in ``source``, whose normalised configuration and shape are given.

    Raises ModelError if its tensors are not those of a Phi 3 of this configuration.
    """
    reader = Reader(source, config, shape, names=_NAMES)
    turning = reader.rotation()
    return reader.decoder([_layer(reader, index, turning) for index in range(shape.num_layers)])


def _layer(reader: Reader, index: int, turning: Rotation) -> DecoderLayer:
    size, inner_size = reader.hidden_size, reader.inner_size
    query_rows = reader.num_heads * reader.head_dim
    key_rows = reader.num_kv_heads * reader.head_dim
    fused = reader.matrix("query_key_value", query_rows + 2 * key_rows, size, index)
    query, key, value = fused.split((query_rows, key_rows, key_rows))
    gate, up = reader.matrix("gate_up", 2 * inner_size, size, index).split((inner_size,) * 2)
    return DecoderLayer(
        attention_norm=reader.norm("attention_norm", size, index),
        attention=reader.attention(index, turning, query=query, key=key, value=value),
        feed_forward_norm=reader.norm("feed_forward_norm", size, index),
        feed_forward=FeedForward(
            reader.activation("hidden_act"),
            gate=gate,
            up=up,
            down=reader.matrix("down", size, inner_size, index),
        ),
    )
