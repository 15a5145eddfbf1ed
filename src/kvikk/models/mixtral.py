"""Mixtral: a Mistral whose feed-forward networks are mixtures of experts."""

from kvikk.files.sources import ModelSource
from kvikk.models.decoder import Decoder
from kvikk.models.reader import LLAMA_NAMES, Reader, layer_names
from kvikk.shapes.config import Config
from kvikk.shapes.shape import ModelShape

_NAMES = {
    **LLAMA_NAMES,
    **layer_names(
        router=("block_sparse_moe.gate", "ffn_gate_inp"),
        expert_gate=("block_sparse_moe.experts.{expert}.w1", "ffn_gate_exps"),
        expert_up=("block_sparse_moe.experts.{expert}.w3", "ffn_up_exps"),
        expert_down=("block_sparse_moe.experts.{expert}.w2", "ffn_down_exps"),
    ),
}


def load_mixtral(source: ModelSource, config: Config, shape: ModelShape) -> Decoder:
    """The decoder in ``source``. In GGUF it is a Llama with experts.

    Raises ModelError if its tensors are not those of a Mixtral of this configuration.
    """
    reader = Reader(source, config, shape, names=_NAMES, interleaved=source.is_gguf)
    turning = reader.rotation()
    return reader.decoder(
        [
            reader.layer(index, turning, reader.mixture(index, reader.inner_size, True))
            for index in range(shape.num_layers)
        ]
    )
