"""Llama: a pre-norm decoder with grouped-query attention, rotary positions and a SiLU gate.

Mistral is the same with a window over all layers; the shape knows of that.
"""

from kvikk.files.sources import ModelSource
from kvikk.models.decoder import Decoder
from kvikk.models.reader import QUERY_KEY_VALUE, Reader
from kvikk.shapes.config import Config
from kvikk.shapes.shape import ModelShape


def load_llama(source: ModelSource, config: Config, shape: ModelShape) -> Decoder:
    """The decoder in ``source``, whose normalised configuration and shape are given.

    Raises ModelError if its tensors are not those of a Llama of this configuration.
    """
    reader = llama_reader(source, config, shape)
    turning = reader.rotation()
    return reader.decoder([reader.layer(index, turning) for index in range(shape.num_layers)])


def llama_reader(source: ModelSource, config: Config, shape: ModelShape) -> Reader:
    """A reader of a model stored as a Llama is, with biases where the configuration says so."""
    biased: set[str] = set()
    if config.get("attention_bias"):
        biased |= {*QUERY_KEY_VALUE, "output"}
    if config.get("mlp_bias"):
        biased |= {"gate", "up", "down"}
    return Reader(source, config, shape, biased=biased, interleaved=source.is_gguf)
