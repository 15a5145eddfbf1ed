"""SmolLM3: a Llama of which every fourth layer does not rotate positions."""

from kvikk.files.sources import ModelSource
from kvikk.models.decoder import Decoder
from kvikk.models.llama import llama_reader
from kvikk.shapes import config as fields
from kvikk.shapes.config import Config
from kvikk.shapes.shape import ModelShape


def load_smollm3(source: ModelSource, config: Config, shape: ModelShape) -> Decoder:
    """The decoder in ``source``, whose normalised configuration and shape are given.

    Raises ModelError if its tensors are not those of a SmolLM3 of this configuration.
    """
    reader = llama_reader(source, config, shape)
    turning = reader.rotation()
    period = fields.read_int(config, "no_rope_layer_interval", default=4)
    # Named the other way round: 1 is a layer that rotates.
    rotates = fields.flags(config, "no_rope_layers") or [
        (index + 1) % period != 0 for index in range(shape.num_layers)
    ]
    return reader.decoder(
        [reader.layer(index, turning if turns else None) for index, turns in enumerate(rotates)]
    )
