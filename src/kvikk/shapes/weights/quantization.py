"""Bytes of weights under a configuration's ``quantization_config``, with the scales beside them.

Sources: the configuration classes of transformers (``quantization_config.py``) and vLLM's
``model_executor/layers/quantization``.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from fractions import Fraction

from kvikk.errors import ModelError
from kvikk.shapes import config as fields
from kvikk.shapes.config import Config
from kvikk.shapes.dtypes import cache_dtype
from kvikk.shapes.families import normalise
from kvikk.shapes.weights.model import model_weights

# Four-bit floats: of MX with a byte for 32, of NVIDIA with a byte for 16.
_MXFP4, _NVFP4 = Fraction(4, 8) + Fraction(1, 32), Fraction(4, 8) + Fraction(1, 16)


@dataclass(frozen=True)
class Quantization:
    """How a configuration stores its matrices.

    ``bytes_per_element`` includes scales. ``expert_bytes_per_element`` is that of routed experts.
    ``kept`` are patterns of modules that stay in the model's data type.
    """

    bytes_per_element: Fraction
    expert_bytes_per_element: Fraction
    kept: tuple[str, ...]

    def is_kept(self) -> Callable[[str], bool]:
        """A test for the modules that are not quantised."""
        names = {_plain(kept) for kept in self.kept if not _is_pattern(kept)}
        pattern = "|".join(f"(?:{_as_regex(kept)})" for kept in self.kept if _is_pattern(kept))
        matches = re.compile(pattern).match if pattern else lambda name: None

        def test(name: str) -> bool:
            parts = name.removeprefix("model.").split(".")
            ends = range(1, len(parts) + 1)
            paths = (".".join(parts[start:end]) for end in ends for start in range(end))
            return any(path in names for path in paths) or matches(name) is not None

        return test


def weight_bytes(config: Config, assume: str | None = None) -> int:
    """Bytes of all weights that ``config`` describes, as it quantises them.

    Raises ModelError for a way of quantising that is not known, and as ``model_weights`` does.
    """
    text = normalise(config, assume)
    plain = Fraction(cache_dtype(fields.model_dtype(text)).block_bytes)
    quantization = read_quantization(text) or Quantization(plain, plain, ())
    is_kept = quantization.is_kept()
    total = Fraction(0)
    for weight in model_weights(config, assume):
        # Heads are linear too, and no method quantises them unless told.
        if not weight.outputs or weight.name == "lm_head" or is_kept(weight.name):
            total += weight.total_elements * plain
        elif ".experts." in weight.name:
            total += weight.total_elements * quantization.expert_bytes_per_element
        else:
            total += weight.total_elements * quantization.bytes_per_element
    return int(total)


def read_quantization(config: Config) -> Quantization | None:
    """What ``quantization_config`` says; None where there is none. Raises ModelError."""
    quantization = fields.part(config, "quantization_config")
    if not quantization:
        return None
    method = str(quantization.get("quant_method", quantization.get("quant_algo", "unnamed")))
    readers: dict[str, Callable[[Config], Fraction]] = {
        "awq": _grouped_integers,
        "bitsandbytes": _bitsandbytes,
        "compressed-tensors": _compressed_tensors,
        "fbgemm_fp8": _fp8,
        "fp8": _fp8,
        "gptq": _grouped_integers,
        "modelopt": _modelopt,
        "modelopt_fp4": _modelopt,
        "mxfp4": lambda quantization: _MXFP4,
    }
    if method not in readers:
        known = ", ".join(sorted(readers))
        raise ModelError(
            f"weights quantised by {method!r} cannot be sized; known: {known}; state their size"
        )
    size = readers[method](quantization)
    stated = config.get("expert_dtype") or quantization.get("expert_dtype")
    experts = _MXFP4 if stated in ("fp4", "mxfp4") else size
    return Quantization(size, experts, _kept(quantization))


def _fp8(quantization: Config) -> Fraction:
    """A byte an element; with blocks, a float32 scale for each."""
    block = quantization.get("weight_block_size")
    if block is None:
        return Fraction(1)
    if not isinstance(block, list) or not all(type(size) is int and size > 0 for size in block):
        raise ModelError("the model's configuration: weight_block_size is no list of sizes")
    elements = 1
    for size in block:
        elements *= size
    return 1 + Fraction(4, elements)


def _grouped_integers(quantization: Config) -> Fraction:
    """GPTQ and AWQ: a scale in float16 and a zero point for each group."""
    bits = fields.read_int(quantization, "bits", "w_bit", default=4, largest=8)
    return Fraction(bits, 8) + _per_group(quantization, Fraction(16 + bits, 8))


def _per_group(quantization: Config, scale_bytes: Fraction) -> Fraction:
    stated = quantization.get("group_size", quantization.get("q_group_size", 128))
    if stated is None or stated == -1:  # a scale a row, too few to count
        return Fraction(0)
    return scale_bytes / fields.read_int({"group_size": stated}, "group_size")


def _bitsandbytes(quantization: Config) -> Fraction:
    """A float32 scale for 64 elements of four bits, or those scales in a byte each."""
    if quantization.get("load_in_4bit") is not True:
        return Fraction(1)
    twice = quantization.get("bnb_4bit_use_double_quant") is True
    scales = Fraction(1, 64) + Fraction(4, 64 * 256) if twice else Fraction(4, 64)
    return Fraction(4, 8) + scales


def _modelopt(quantization: Config) -> Fraction:
    algorithm = str(quantization.get("quant_algo", "")).upper()
    if "FP4" in algorithm:
        return _NVFP4
    if "FP8" in algorithm:
        return Fraction(1)
    return _compressed_tensors(quantization)


def _compressed_tensors(quantization: Config) -> Fraction:
    """By the first of ``config_groups``: bits, and a scale for each group of elements."""
    groups = fields.part(quantization, "config_groups")
    group = next((group for group in groups.values() if isinstance(group, Mapping)), None)
    if group is None:
        raise ModelError("the model's configuration: its quantization has no config_groups")
    weights = fields.part(group, "weights")
    bits = fields.read_int(weights, "num_bits", largest=32)
    if weights.get("group_size") is None:
        return Fraction(bits, 8)
    is_byte = weights.get("type") == "float" and bits == 4
    return Fraction(bits, 8) + _per_group(weights, Fraction(1 if is_byte else 2))


def _kept(quantization: Config) -> tuple[str, ...]:
    """Modules that stay as they are, by either of the two names for their list."""
    listed: list[str] = []
    for name in ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules"):
        values = quantization.get(name)
        if values is None:
            continue
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise ModelError(f"the model's configuration: {name} is not a list of names")
        listed += values
    return tuple(listed)


def _is_pattern(kept: str) -> bool:
    return kept.startswith("re:") or "*" in kept


def _plain(kept: str) -> str:
    """A module's name without the parts of the model that not all names go through."""
    return kept.replace("language_model.", "").removeprefix("model.")


def _as_regex(kept: str) -> str:
    """A pattern as a regular expression: ``re:`` marks one; elsewhere a star is any text."""
    if kept.startswith("re:"):
        return _valid(kept.removeprefix("re:"))
    return f"(?:model\\.)?{translate(_plain(kept) + '*')}"


def _valid(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ModelError(f"the model's configuration: {pattern!r} is no pattern: {error}") from None
    return pattern
