"""Rotary position embedding: from a configuration's parameters to frequencies."""

from collections.abc import Mapping
from math import ceil, floor, log, pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvikk.errors import ModelError
from kvikk.models.decoder import Rotation
from kvikk.shapes.config import Config, read_float

_KNOWN_TYPES = "default, linear, dynamic, yarn, llama3"


def rotation(parameters: Config, head_dim: int, context_tokens: int) -> Rotation:
    """The rotation of heads of ``head_dim`` elements that ``parameters`` describe.

    ``parameters`` has ``rope_theta`` and, where positions are stretched, ``rope_type`` (or its old
    name ``type``) and what that type needs; ``context_tokens`` is what the model was made for.
    Raises ModelError for a type that is not known, and for heads that have no two halves.
    """
    dimensions = int(head_dim * read_float(parameters, "partial_rotary_factor", 1.0))
    if dimensions % 2 or not 0 < dimensions <= head_dim:
        raise ModelError(
            f"{dimensions} of a head's {head_dim} elements cannot be rotated: "
            "an even part of it can be"
        )
    theta = read_float(parameters, "rope_theta")
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "dynamic":
        theta = _dynamic(theta, dimensions, parameters)
    # Rounded to float32 after each operation, as where the models were trained.
    exponents = np.arange(0, dimensions, 2, dtype=np.float32) / np.float32(dimensions)
    powers = (theta ** exponents.astype(np.float64)).astype(np.float32)
    frequencies = np.float32(1) / powers
    if kind == "yarn":
        return _yarn(frequencies, theta, parameters, context_tokens)
    if kind == "linear":
        frequencies /= np.float32(read_float(parameters, "factor"))
    elif kind == "llama3":
        frequencies = _llama3(frequencies, parameters)
    elif kind not in ("default", "dynamic"):
        raise ModelError(
            f"rotary embeddings of type {kind!r} are not supported; known: {_KNOWN_TYPES}"
        )
    return Rotation(dimensions, frequencies)


def longest_context(parameters: Config, context_tokens: int) -> int:
    """The positions that a rotation reaches in a model that states ``context_tokens``.

    What configurations state is the length before stretching (dynamic), or either (yarn).
    """
    kind = parameters.get("rope_type") or parameters.get("type")
    if kind == "dynamic":
        return int(context_tokens * read_float(parameters, "factor"))
    if kind == "yarn" and parameters.get("factor") is not None:
        original = read_float(parameters, "original_max_position_embeddings", float(context_tokens))
        return max(context_tokens, int(original * read_float(parameters, "factor")))
    return context_tokens


def rope_parameters(config: Config, layer_type: str | None = None) -> dict[str, Any]:
    """The rotation's parameters in ``config``, in today's form or the older one.

    Today: ``rope_parameters``, one object, or one for each type of layer. Earlier: ``rope_theta``
    and ``rope_scaling``, which then are those of layers that see everything. Raises ModelError if
    they are neither.
    """
    parameters = config.get("rope_parameters")
    if not isinstance(parameters, Mapping):
        parameters = config.get("rope_scaling") or {}
        if not isinstance(parameters, Mapping):
            raise ModelError("the model's configuration: rope_scaling is not an object")
    elif layer_type is not None and isinstance(parameters.get(layer_type), Mapping):
        parameters = parameters[layer_type]
    return {
        "rope_theta": config.get("rope_theta"),
        "partial_rotary_factor": config.get("partial_rotary_factor"),
        **parameters,
    }


def _llama3(frequencies: NDArray[np.float32], parameters: Config) -> NDArray[np.float32]:
    """Llama 3.1's stretching: slow rotations slowed by ``factor``, fast ones kept, a ramp between.

    What counts is how often a dimension turns within the original context: less than
    ``low_freq_factor`` times is slow, more than ``high_freq_factor`` times is fast.
    """
    low = read_float(parameters, "low_freq_factor")
    high = read_float(parameters, "high_freq_factor")
    if low >= high:
        raise ModelError(
            f"the model's configuration: low_freq_factor {low} is not below high_freq_factor {high}"
        )
    original_context = read_float(parameters, "original_max_position_embeddings")
    turns = original_context * frequencies / (2 * pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    slowed = frequencies / read_float(parameters, "factor")
    stretched: NDArray[np.float32] = (kept * frequencies + (1 - kept) * slowed).astype(np.float32)
    return stretched


def _dynamic(theta: float, dimensions: int, parameters: Config) -> float:
    """The base of the rotation whose context has grown by ``factor``.

    The formula is of a sequence's present length, which would make keys of one token differ from
    prompt to prompt; taken at the longest context it is one rotation for all.
    """
    factor = read_float(parameters, "factor")
    growth = factor * factor - (factor - 1)
    return float(theta * growth ** (dimensions / (dimensions - 2)))


def _yarn(
    frequencies: NDArray[np.float32], theta: float, parameters: Config, context_tokens: int
) -> Rotation:
    """YaRN (arXiv:2309.00071): as Llama 3's, with the ramp over dimensions; and a stretch.

    Dimensions that turn more than ``beta_fast`` times within the original context are kept, those
    that turn less than ``beta_slow`` times are slowed by ``factor``.
    """
    dimensions = 2 * len(frequencies)
    original_context = read_float(
        parameters, "original_max_position_embeddings", float(context_tokens)
    )
    factor = read_float(parameters, "factor", context_tokens / original_context)

    def dimension_that_turns(times: float) -> float:
        return dimensions * log(original_context / (times * 2 * pi)) / (2 * log(theta))

    low = dimension_that_turns(read_float(parameters, "beta_fast", 32.0))
    high = dimension_that_turns(read_float(parameters, "beta_slow", 1.0))
    if parameters.get("truncate", True):
        low, high = floor(low), ceil(high)
    low, high = max(low, 0), min(high, dimensions - 1)
    ramp = np.arange(len(frequencies), dtype=np.float32) - np.float32(low)
    slowed = np.clip(ramp / np.float32(high - low if high != low else 0.001), 0, 1)
    mixed = frequencies / np.float32(factor) * slowed + frequencies * (1 - slowed)
    return Rotation(dimensions, mixed.astype(np.float32), _yarn_stretch(factor, parameters))


def _yarn_stretch(factor: float, parameters: Config) -> float:
    """What YaRN multiplies queries and keys by."""

    def stretch(weight: float) -> float:
        return 0.1 * weight * log(factor) + 1.0 if factor > 1 else 1.0

    if parameters.get("attention_factor") is not None:
        return read_float(parameters, "attention_factor")
    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        upper, lower = read_float(parameters, "mscale"), read_float(parameters, "mscale_all_dim")
        return stretch(upper) / stretch(lower)
    return stretch(1.0)
