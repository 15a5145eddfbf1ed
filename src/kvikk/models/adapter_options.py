"""What a PEFT configuration says of how its matrices are applied, and which kinds are refused.

An option that is not known and is switched on is refused too: it would change what is computed.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kvikk.errors import ModelError

Value = TypeVar("Value")
# Beyond it an adapter is no small thing beside its model any more.
MAX_RANK = 256

# Say where an adapter came from, what it was trained with, or which tensors there are, and nothing
# that the tensors do not say better.
_HARMLESS = frozenset(
    (
        *("peft_type", "peft_version", "task_type", "auto_mapping", "runtime_config"),
        *("base_model_name_or_path", "revision", "inference_mode", "fan_in_fan_out"),
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
        *("lora_dropout", "megatron_config", "megatron_core", "qalora_group_size"),
        *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "ensure_weight_tying"),
    )
)
_KNOWN = ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern")
# What a module's path is matched with for a key of ``rank_pattern`` or ``alpha_pattern``.
_PATTERN = r"(.*\.)?({})$"
_CHECKED = ("init_lora_weights", "bias")
# Initialisations that change the base model's weights: what is added is to those, which nobody has.
_CHANGES_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
_NOT_SUPPORTED = {
    "use_dora": "DoRA",
    "modules_to_save": "modules_to_save (whole modules beside the low-rank matrices)",
    "layer_replication": "layer_replication",
    "lora_bias": "lora_bias",
    "trainable_token_indices": "trainable_token_indices",
    "target_parameters": "target_parameters",
    "use_qalora": "QALoRA",
    "alora_invocation_tokens": "activated LoRA",
}


@dataclass(frozen=True)
class LoraOptions:
    """Ranks and scales of the modules, by their paths in the model."""

    path: Path
    rank: int
    alpha: float
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    is_stabilised: bool

    def rank_of(self, module: str) -> int:
        """The rank of the module of this path."""
        return _matching(self.rank_pattern, module, self.rank)

    def scale_of(self, module: str) -> float:
        """What its product is multiplied by: alpha / rank, or alpha over the root of it.

        The latter is rank-stabilised; Kalajdzievski, arXiv:2312.03732.
        """
        rank = self.rank_of(module)
        alpha = _matching(self.alpha_pattern, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.is_stabilised else rank)


def read_options(path: Path, config: Mapping[str, Any]) -> LoraOptions:
    """The options of the configuration in the file ``path``.

    Raises ModelError, naming the option, for what is malformed or cannot be run.
    """
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ModelError(f"{path}: its peft_type is {kind!r:.40}; only LORA can be run")
    for option, name in _NOT_SUPPORTED.items():
        if config.get(option):
            raise ModelError(f"{path}: {name} is not supported; only plain LoRA can be run")
    if config.get("bias") not in (None, "none"):
        raise ModelError(f"{path}: bias is {config['bias']!r:.40}; only 'none' can be run")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_THE_BASE):
        raise ModelError(
            f"{path}: init_lora_weights is {start!r:.40}, which changed the base model's weights; "
            "convert it to plain LoRA with PEFT first"
        )
    unknown = [
        name
        for name, value in config.items()
        if value and name not in (*_HARMLESS, *_KNOWN, *_CHECKED)
    ]
    if unknown:
        raise ModelError(f"{path}: the option {min(unknown)!r:.60} is not known; it cannot be run")
    ranks = _pattern(path, config, "rank_pattern")
    return LoraOptions(
        path,
        rank=_rank(path, "r", config.get("r")),
        alpha=_number(path, "lora_alpha", config.get("lora_alpha")),
        rank_pattern={key: _rank(path, "rank_pattern", value) for key, value in ranks.items()},
        alpha_pattern={
            key: _number(path, "alpha_pattern", value)
            for key, value in _pattern(path, config, "alpha_pattern").items()
        },
        is_stabilised=bool(config.get("use_rslora")),
    )


def _pattern(path: Path, config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    pattern = config.get(name) or {}
    if not isinstance(pattern, dict):
        raise ModelError(f"{path}: {name} is not an object from module names to numbers")
    for key in pattern:
        try:
            re.compile(_PATTERN.format(key))
        except (re.error, OverflowError, RecursionError):
            raise ModelError(f"{path}: {name} has {key!r:.60}, which is no pattern") from None
    return pattern


def _rank(path: Path, name: str, value: object) -> int:
    if type(value) is not int or not 1 <= value <= MAX_RANK:
        raise ModelError(
            f"{path}: {name} says {value!r:.40}; ranks are whole numbers from 1 to {MAX_RANK}"
        )
    return value


def _number(path: Path, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e6:
        raise ModelError(f"{path}: {name} says {value!r:.40}; expected a number")
    return float(value)


def _matching(pattern: Mapping[str, Value], module: str, otherwise: Value) -> Value:
    """The value of the first pattern that the end of a module's path matches, as PEFT reads it."""
    for key, value in pattern.items():
        if re.match(_PATTERN.format(key), module):
            return value
    return otherwise
