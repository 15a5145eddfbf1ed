"""A GGUF file's metadata in the words of ``config.json``, so that both are read by one reader.

A key that is absent stays absent; its default is the affair of whoever reads the configuration.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kvikk.files.gguf import GGUFFile, StringArray

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
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
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
    config["rope_scaling"] = _rope_scaling(architecture, file.metadata)
    if architecture in _ARCHITECTURES:
        _ARCHITECTURES[architecture](config, file.metadata)
    return config


def _rope_scaling(architecture: str, metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """How positions are stretched, also where an old file says it in its own way."""
    kind = metadata.get(f"{architecture}.rope.scaling.type", "none")
    if isinstance(kind, str) and kind != "none":
        factor = metadata.get(f"{architecture}.rope.scaling.factor", 1.0)
        return {"rope_type": kind, "factor": factor}
    factor = metadata.get(f"{architecture}.rope.scale_linear")
    return None if factor is None else {"rope_type": "linear", "factor": factor}


def _llama(config: Config, metadata: Mapping[str, Any]) -> None:
    config["hidden_act"] = "silu"
    rotated = metadata.get("llama.rope.dimension_count")
    match config:
        case {"head_dim": int(head_dim)} if head_dim > 0:
            pass
        case {"hidden_size": int(size), "num_attention_heads": int(heads)} if heads > 0:
            head_dim = size // heads
        case _:
            return
    if isinstance(rotated, int) and rotated != head_dim:
        config["partial_rotary_factor"] = rotated / head_dim


def _gemma3(config: Config, metadata: Mapping[str, Any]) -> None:
    config["model_type"] = "gemma3_text"
    config["hidden_activation"] = "gelu_pytorch_tanh"
    local_theta = metadata.get("gemma3.rope.freq_base_swa")
    if local_theta is not None:
        config["rope_local_base_freq"] = local_theta
    # The format leaves out what attention scores are divided by. It is the head size, except in
    # the 27B model, which is known by its 62 layers.
    match config:
        case {"num_hidden_layers": 62, "hidden_size": int(size), "num_attention_heads": int(heads)}:
            config["query_pre_attn_scalar"] = size // max(heads, 1)
        case {"head_dim": head_dim}:
            config["query_pre_attn_scalar"] = head_dim


_ARCHITECTURES: dict[str, Callable[[Config, Mapping[str, Any]], None]] = {
    "llama": _llama,
    "gemma3": _gemma3,
}
