"""Rotary position embedding: from a configuration's parameters to frequencies."""

from collections.abc import Mapping
from math import pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvikk.errors import ModelError
from kvikk.models.decoder import Rotation
from kvikk.shapes.config import Config, read_float


def rotation(parameters: Config, dimensions: int) -> Rotation:
    """The rotation of ``dimensions`` elements that ``parameters`` describe.

    ``parameters`` has ``rope_theta`` and, where positions are stretched, ``rope_type`` (or its old
    name ``type``) and what that type needs. Raises ModelError for a type that is not known, for a
    rotation of a part of each head, and for heads that have no two halves.
    """
    if dimensions % 2:
        raise ModelError(f"heads of {dimensions} elements cannot be rotated: the number is odd")
    if parameters.get("partial_rotary_factor") not in (None, 1):
        raise ModelError("rotary embeddings of a part of each head are not supported")
    theta = read_float(parameters, "rope_theta")
    # Rounded to float32 after each operation, as where the models were trained.
    exponents = np.arange(0, dimensions, 2, dtype=np.float32) / np.float32(dimensions)
    powers = (theta ** exponents.astype(np.float64)).astype(np.float32)
    frequencies = np.float32(1) / powers
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "linear":
        frequencies /= np.float32(read_float(parameters, "factor"))
    elif kind == "llama3":
        frequencies = _llama3(frequencies, parameters)
    elif kind != "default":
        raise ModelError(
            f"rotary embeddings of type {kind!r} are not supported; known: default, linear, llama3"
        )
    return Rotation(dimensions, frequencies)


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
