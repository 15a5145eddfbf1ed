"""A GGUF file's metadata in the words of ``config.json``, so that both are read by one reader.

A key that is absent stays absent; its default is the affair of whoever reads the configuration.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kvikk.files.gguf import GGUFFile, StringArray
from kvikk.files.gguf_shapes import add_shape_keys

Config = dict[str, Any]

# Keys under "<architecture>." that mean the same in every architecture.
_COMMON_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.scale": "attention_multiplier",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "embedding_scale": "embedding_multiplier",
    "expert_count": "num_local_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_used_count": "num_experts_per_tok",
    "final_logit_softcapping": "final_logit_softcapping",
    "logit_scale": "logits_scaling",
    "residual_scale": "residual_multiplier",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}


def config_from_gguf(file: GGUFFile) -> Config:
    """The configuration that ``file`` states; ``model_type`` is its architecture's name there.

    An architecture without a rule here keeps its own name, for the readers of configurations to
    accept or refuse.
    """
    architecture = str(file.metadata.get("general.architecture", "unnamed"))
    config: Config = {"model_type": architecture}
    for gguf_key, config_key in _COMMON_KEYS.items():
        value = file.metadata.get(f"{architecture}.{gguf_key}")
        if value is not None:
            config[config_key] = value.tolist() if isinstance(value, np.ndarray) else value
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, StringArray):
        config.setdefault("vocab_size", len(tokens))
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    if config.get("sliding_window") == 0:  # how the format says that there is none
        del config["sliding_window"]
    config["rope_scaling"] = _rope_scaling(architecture, file.metadata)
    _note_partial_rotation(config, file.metadata.get(f"{architecture}.rope.dimension_count"))
    add_shape_keys(config, architecture, file.metadata)
    if architecture in _ARCHITECTURES:
        _ARCHITECTURES[architecture](config, file.metadata)
    return config


def _rope_scaling(architecture: str, metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """How positions are stretched, also where an old file says it in its own way."""
    prefix = f"{architecture}.rope.scaling"
    kind = metadata.get(f"{prefix}.type", "none")
    if isinstance(kind, str) and kind != "none":
        stated = {
            "rope_type": kind,
            "factor": metadata.get(f"{prefix}.factor", 1.0),
            "original_max_position_embeddings": metadata.get(f"{prefix}.original_context_length"),
            "beta_fast": metadata.get(f"{prefix}.yarn_beta_fast"),
            "beta_slow": metadata.get(f"{prefix}.yarn_beta_slow"),
        }
        return {name: value for name, value in stated.items() if value is not None}
    factor = metadata.get(f"{architecture}.rope.scale_linear")
    return None if factor is None else {"rope_type": "linear", "factor": factor}


def _note_partial_rotation(config: Config, rotated: object) -> None:
    """Say which part of a head turns where not all of its elements do."""
    match config:
        case {"head_dim": int(head_dim)} if head_dim > 0:
            pass
        case {"hidden_size": int(size), "num_attention_heads": int(heads)} if heads > 0:
            head_dim = size // heads
        case _:
            return
    if isinstance(rotated, int) and rotated != head_dim:
        config["partial_rotary_factor"] = rotated / head_dim


def _gemma2(config: Config, metadata: Mapping[str, Any]) -> None:
    _divide_scores(config, layers_of_largest=46)


def _gemma3(config: Config, metadata: Mapping[str, Any]) -> None:
    config["model_type"] = "gemma3_text"
    local_theta = metadata.get("gemma3.rope.freq_base_swa")
    if local_theta is not None:
        config["rope_local_base_freq"] = local_theta
    _divide_scores(config, layers_of_largest=62)


def _llama(config: Config, metadata: Mapping[str, Any]) -> None:
    if config.get("num_local_experts"):
        config["model_type"] = "mixtral"


def _qwen3_moe(config: Config, metadata: Mapping[str, Any]) -> None:
    config["norm_topk_prob"] = True  # whatever the file says, which is nothing


def _divide_scores(config: Config, layers_of_largest: int) -> None:
    """What attention scores are divided by the root of, which the format leaves out.

    It is the head size, except in the 27B models, which are known by their layers.
    """
    match config:
        case {"num_hidden_layers": layers, "hidden_size": int(size), "num_attention_heads": int(n)}:
            if layers == layers_of_largest:
                config["query_pre_attn_scalar"] = size // max(n, 1)
                return
    if "head_dim" in config:
        config["query_pre_attn_scalar"] = config["head_dim"]


_ARCHITECTURES: dict[str, Callable[[Config, Mapping[str, Any]], None]] = {
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "llama": _llama,
    "qwen3moe": _qwen3_moe,
}
