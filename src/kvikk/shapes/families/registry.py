"""All families by ``model_type``, and reading a configuration by its family."""

from kvikk.errors import ModelError
from kvikk.shapes import config as fields
from kvikk.shapes.config import Config, is_nested, text_config
from kvikk.shapes.dtypes import PACKED_LATENTS
from kvikk.shapes.families.cross import CROSS
from kvikk.shapes.families.defaults import DEFAULTS, PART_DEFAULTS
from kvikk.shapes.families.full import FULL
from kvikk.shapes.families.hybrids import HYBRIDS
from kvikk.shapes.families.latent import LATENT
from kvikk.shapes.families.layers import Family
from kvikk.shapes.families.recurrences import RECURRENCES
from kvikk.shapes.families.states import STATES
from kvikk.shapes.families.windows import WINDOWS
from kvikk.shapes.shape import ModelShape

FAMILIES: dict[str, Family] = {
    **FULL,
    **WINDOWS,
    **LATENT,
    **STATES,
    **HYBRIDS,
    **RECURRENCES,
    **CROSS,
}

# What an unknown family's configuration is looked through for, to be told in the error.
_KEYS_LOOKED_AT = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "layer_types",
    "sliding_window",
    "kv_lora_rank",
)


def normalise(config: Config, assume: str | None = None) -> Config:
    """The language model's part of a ``config.json``, with its family's defaults filled in.

    ``assume`` is the family that a model of an unknown one is read as. Raises ModelError for an
    unknown ``model_type`` otherwise.
    """
    text = text_config(config)
    family = _family(text, assume)
    part_defaults = PART_DEFAULTS.get(family, {}) if is_nested(config) else {}
    return {**part_defaults, **DEFAULTS.get(family, {}), **text, "model_type": family}


def read_shape(config: Config, assume: str | None = None) -> ModelShape:
    """What a model with this ``config.json`` keeps for each token.

    Raises ModelError for an unknown ``model_type``, unless ``assume`` names the family to read it
    as, and for a configuration that is incomplete or contradicts itself.
    """
    text = normalise(config, assume)
    family = fields.model_type(text)
    return ModelShape(
        model_type=family,
        layers=FAMILIES[family](text),
        context_tokens=fields.context_tokens(text),
        dtype=fields.model_dtype(text),
        kv_dtype=PACKED_LATENTS if family == "deepseek_v4" else fields.kv_dtype(text),
    )


def _family(text: Config, assume: str | None) -> str:
    if assume is not None and assume not in FAMILIES:
        raise ModelError(f"no family {assume!r} to assume; for example: llama")
    stated = text.get("model_type")
    if stated is None and assume is not None:
        return assume
    name = fields.model_type(text)
    if name in FAMILIES:
        return name
    if assume is not None:
        return assume
    seen = ", ".join(f"{key} {_seen(text, key)}" for key in _KEYS_LOOKED_AT)
    raise ModelError(
        f"models of type {name!r} are not supported. Looked at model_type, and beside it found "
        f"{seen}; to read these as a Llama's, assume llama"
    )


def _seen(text: Config, key: str) -> str:
    value = text.get(key)
    if value is None:
        return "absent"
    return str(value) if isinstance(value, int) else "set"
