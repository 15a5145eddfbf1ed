"""Qwen 2, whose queries, keys and values have a bias, and Qwen 3, which norms them instead."""

from kvikk.files.sources import ModelSource
from kvikk.models.decoder import Decoder
from kvikk.models.reader import QUERY_KEY_VALUE, Reader
from kvikk.shapes.config import Config
from kvikk.shapes.shape import ModelShape


def load_qwen2(source: ModelSource, config: Config, shape: ModelShape) -> Decoder:
    """The decoder in ``source``: Qwen 2 or 2.5.

    Raises ModelError if its tensors are not those of a Qwen 2 of this configuration.
    """
    reader = Reader(source, config, shape, biased=QUERY_KEY_VALUE)
    turning = reader.rotation()
    return reader.decoder([reader.layer(index, turning) for index in range(shape.num_layers)])


def load_qwen3(source: ModelSource, config: Config, shape: ModelShape) -> Decoder:
    """The decoder in ``source``: Qwen 3, without experts.

    Raises ModelError if its tensors are not those of a Qwen 3 of this configuration.
    """
    biased = {*QUERY_KEY_VALUE, "output"} if config.get("attention_bias") else ()
    reader = Reader(source, config, shape, biased=biased)
    turning = reader.rotation()
    return reader.decoder(
        [
            reader.layer(
                index,
                turning,
                query_norm=reader.norm("query_norm", reader.head_dim, index),
                key_norm=reader.norm("key_norm", reader.head_dim, index),
            )
            for index in range(shape.num_layers)
        ]
    )
