"""GPT-2: LayerNorms, learned positions, biases everywhere, and no gate."""

from kvikk.errors import ModelError
from kvikk.files.sources import ModelSource
from kvikk.models.decoder import Decoder, DecoderLayer, FeedForward, Matrix
from kvikk.models.reader import Reader
from kvikk.shapes import config as fields
from kvikk.shapes.config import Config
from kvikk.shapes.shape import ModelShape

_NAMES = {
    "embedding": ("wte.weight", "token_embd.weight"),
    "position_embedding": ("wpe.weight", "position_embd.weight"),
    "final_norm": ("ln_f.weight", "output_norm.weight"),
    "head": ("lm_head.weight", "output.weight"),
    **{
        role: (f"h.{{layer}}.{safetensors}.weight", f"blk.{{layer}}.{gguf}.weight")
        for role, safetensors, gguf in (
            ("attention_norm", "ln_1", "attn_norm"),
            ("query_key_value", "attn.c_attn", "attn_qkv"),
            ("output", "attn.c_proj", "attn_output"),
            ("feed_forward_norm", "ln_2", "ffn_norm"),
            ("up", "mlp.c_fc", "ffn_up"),
            ("down", "mlp.c_proj", "ffn_down"),
        )
    },
}


class _GPT2Reader(Reader):
    """A reader whose matrices may lie transposed: safetensors have them ``[inputs, outputs]``."""

    def matrix(self, role: str, rows: int, columns: int, layer: int) -> Matrix:
        """A matrix with its bias."""
        bias = self.weights.bias(role, rows, layer)
        if self.source.is_gguf:
            return self.weights.matrix(role, rows, columns, layer, bias=bias)
        return self.weights.transposed_matrix(role, rows, columns, layer, bias=bias)


def load_gpt2(source: ModelSource, config: Config, shape: ModelShape) -> Decoder:
    """The decoder in ``source``, whose normalised configuration and shape are given.

    Raises ModelError if its tensors are not those of a GPT-2 of this configuration.
    """
    reader = _GPT2Reader(source, config, shape, names=_NAMES, prefix="transformer.")
    reader.refuse_options("scale_attn_by_inverse_layer_idx", "add_cross_attention")
    if not config.get("scale_attn_weights", True):
        raise ModelError("a GPT-2 without scale_attn_weights is not supported")
    positions = reader.weights.matrix(
        "position_embedding", shape.context_tokens, reader.hidden_size
    )
    return reader.decoder(
        [_layer(reader, index) for index in range(shape.num_layers)],
        final_norm=reader.layer_norm("final_norm", reader.hidden_size),
        norm_epsilon=fields.read_float(config, "layer_norm_epsilon", 1e-5),
        position_embedding=positions,
        # Masks, which old files store too.
        ignored=(".attn.bias", ".attn.masked_bias"),
    )


def _layer(reader: Reader, index: int) -> DecoderLayer:
    size = reader.hidden_size
    inner_size = fields.read_int(reader.config, "n_inner", "intermediate_size", default=4 * size)
    fused = reader.matrix("query_key_value", 3 * size, size, index)
    query, key, value = fused.split((size, size, size))
    return DecoderLayer(
        attention_norm=reader.layer_norm("attention_norm", size, index),
        attention=reader.attention(index, None, query=query, key=key, value=value),
        feed_forward_norm=reader.layer_norm("feed_forward_norm", size, index),
        feed_forward=FeedForward(
            reader.activation("activation_function"),
            gate=None,
            up=reader.matrix("up", inner_size, size, index),
            down=reader.matrix("down", size, inner_size, index),
        ),
    )
