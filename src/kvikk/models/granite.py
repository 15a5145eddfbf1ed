"""Granite 3: a Llama with four multipliers, all of which other numbers can take in."""

from dataclasses import replace

import numpy as np

from kvikk.files.sources import ModelSource
from kvikk.models.decoder import Decoder
from kvikk.models.llama import llama_reader
from kvikk.shapes.config import Config, read_float
from kvikk.shapes.shape import ModelShape


def load_granite(source: ModelSource, config: Config, shape: ModelShape) -> Decoder:
    """The decoder in ``source``, whose normalised configuration and shape are given.

    What a layer adds to the hidden state is multiplied by ``residual_multiplier`` m. A hidden state
    smaller by m needs no such factor: norms undo it, if their epsilon is smaller by m squared.
    Raises ModelError if its tensors are not those of a Granite of this configuration.
    """
    reader = llama_reader(source, config, shape)
    turning = reader.rotation()
    scale = read_float(config, "attention_multiplier")
    residual = read_float(config, "residual_multiplier")
    final_norm = reader.norm("final_norm", reader.hidden_size)
    divisor = np.float32(read_float(config, "logits_scaling"))
    return reader.decoder(
        [reader.layer(index, turning, scale=scale) for index in range(shape.num_layers)],
        final_norm=replace(final_norm, weight=final_norm.weight / divisor),
        norm_epsilon=read_float(config, "rms_norm_eps") / residual**2,
        embedding_scale=read_float(config, "embedding_multiplier") / residual,
    )
