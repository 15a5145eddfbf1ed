"""Load a decoder: one function a family."""

from collections.abc import Callable

from kvikk.errors import ModelError
from kvikk.files.sources import ModelSource
from kvikk.models.decoder import Decoder
from kvikk.models.gemma import load_gemma2, load_gemma3
from kvikk.models.gpt2 import load_gpt2
from kvikk.models.granite import load_granite
from kvikk.models.llama import load_llama
from kvikk.models.mixtral import load_mixtral
from kvikk.models.olmo2 import load_olmo2
from kvikk.models.phi3 import load_phi3
from kvikk.models.qwen import load_qwen2, load_qwen3
from kvikk.models.smollm3 import load_smollm3
from kvikk.shapes.config import Config, text_config
from kvikk.shapes.families import normalise, read_shape
from kvikk.shapes.shape import ModelShape

_LOADERS: dict[str, Callable[[ModelSource, Config, ModelShape], Decoder]] = {
    "gemma2": load_gemma2,
    "gemma3_text": load_gemma3,
    "gpt2": load_gpt2,
    "granite": load_granite,
    "llama": load_llama,
    "mistral": load_llama,
    "mixtral": load_mixtral,
    "olmo2": load_olmo2,
    "phi3": load_phi3,
    "qwen2": load_qwen2,
    "qwen3": load_qwen3,
    "qwen3_moe": load_qwen3,
    "smollm3": load_smollm3,
}


def load_decoder(source: ModelSource) -> Decoder:
    """The decoder in ``source``. Matrices stay where they are, in the memory map.

    Raises ModelError if its files are damaged, its family cannot be run, or its tensors are not
    what its configuration promises.
    """
    family = text_config(source.config).get("model_type")
    if isinstance(family, str) and family not in _LOADERS:
        raise ModelError(
            f"models of type {family!r} cannot be run; those that can: {', '.join(_LOADERS)}"
        )
    shape = read_shape(source.config)
    return _LOADERS[shape.model_type](source, normalise(source.config), shape)
