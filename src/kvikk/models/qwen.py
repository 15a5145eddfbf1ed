"""Qwen 2, whose queries, keys and values have a bias, and Qwen 3, which norms them instead.

Qwen 3 comes with mixtures of experts too, in some layers or in all.
"""

from kvikk.files.sources import ModelSource
from kvikk.models.decoder import Decoder, Mixture
from kvikk.models.reader import LLAMA_NAMES, QUERY_KEY_VALUE, Reader, layer_names
from kvikk.shapes import config as fields
from kvikk.shapes.config import Config
from kvikk.shapes.shape import ModelShape
from kvikk.shapes.weights.feed_forward import num_experts

_NAMES = {
    **LLAMA_NAMES,
    **layer_names(
        router=("mlp.gate", "ffn_gate_inp"),
        expert_gate=("mlp.experts.{expert}.gate_proj", "ffn_gate_exps"),
        expert_up=("mlp.experts.{expert}.up_proj", "ffn_up_exps"),
        expert_down=("mlp.experts.{expert}.down_proj", "ffn_down_exps"),
    ),
}


def load_qwen2(source: ModelSource, config: Config, shape: ModelShape) -> Decoder:
    """The decoder in ``source``: Qwen 2 or 2.5.

    Raises ModelError if its tensors are not those of a Qwen 2 of this configuration.
    """
    reader = Reader(source, config, shape, biased=QUERY_KEY_VALUE)
    turning = reader.rotation()
    return reader.decoder([reader.layer(index, turning) for index in range(shape.num_layers)])


def load_qwen3(source: ModelSource, config: Config, shape: ModelShape) -> Decoder:
    """The decoder in ``source``: Qwen 3, with experts or without.

    Raises ModelError if its tensors are not those of a Qwen 3 of this configuration.
    """
    biased = {*QUERY_KEY_VALUE, "output"} if config.get("attention_bias") else ()
    reader = Reader(source, config, shape, names=_NAMES, biased=biased)
    turning = reader.rotation()
    return reader.decoder(
        [
            reader.layer(
                index,
                turning,
                _mixture(reader, config, index),
                query_norm=reader.norm("query_norm", reader.head_dim, index),
                key_norm=reader.norm("key_norm", reader.head_dim, index),
            )
            for index in range(shape.num_layers)
        ]
    )


def _mixture(reader: Reader, config: Config, layer: int) -> Mixture | None:
    """The experts of a layer; None where it has one network for all tokens."""
    dense = fields.indices(config, "mlp_only_layers")
    step = fields.read_int(config, "decoder_sparse_step", default=1)
    if not num_experts(config) or layer in dense or (layer + 1) % step:
        return None
    inner_size = fields.read_int(config, "moe_intermediate_size")
    return reader.mixture(layer, inner_size, bool(config.get("norm_topk_prob")))
