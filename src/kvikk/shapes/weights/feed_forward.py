"""Weights of feed-forward layers: gated or plain, dense or a mixture of experts."""

from collections.abc import Iterator
from math import ceil

from kvikk.shapes import config as fields
from kvikk.shapes.config import Config
from kvikk.shapes.weights.records import Weight, linear, vector

_BLOCK_MULTIPLE = 256

# fmt: off
# Two matrices instead of three: no gate beside the activation.
_PLAIN = {
    "bart", "biogpt", "bloom", "codegen", "falcon", "RefinedWeb", "RefinedWebModel", "gpt2",
    "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "m2m_100", "marian", "mbart", "mpt", "nemotron",
    "nemotron_h", "openai-gpt", "opt", "pegasus", "persimmon", "phi", "phi-msft", "starcoder2",
    "whisper", "xglm", "arcee", "apertus",
}
# fmt: on


def feed_forward(config: Config, index: int, prefix: str) -> Iterator[Weight]:
    """Weights of layer ``index``'s feed-forward part.

    Raises ModelError if the configuration lacks what they depend on.
    """
    hidden = fields.hidden_size(config)
    if config.get("block_configs") is not None:
        yield from _dense(config, hidden, _block_size(config, index), prefix)
        return
    experts = num_experts(config)
    if not experts or not _is_sparse(config, index):
        yield from _dense(config, hidden, _dense_size(config), prefix)
        return
    inner = fields.read_int(
        config, "moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size"
    )
    width = fields.read_int(config, "moe_latent_size", "routed_expert_hidden_size", default=hidden)
    for name, inputs, outputs in _matrices(config, width, inner):
        yield linear(f"{prefix}.experts.0.{name}", inputs, outputs, experts)
    if width != hidden:
        yield linear(f"{prefix}.latent_proj", hidden, width, 2)
    yield vector(f"{prefix}.gate", hidden * experts)
    if config.get("topk_method") == "noaux_tc" or config.get("use_routing_bias") is True:
        yield vector(f"{prefix}.gate.e_score_correction_bias", experts)
    shared = _shared_size(config, inner)
    for name, inputs, outputs in _matrices(config, hidden, shared):
        yield linear(f"{prefix}.shared_experts.{name}", inputs, outputs)
    if config["model_type"] in ("qwen2_moe", "qwen3_next", "qwen3_5_moe_text"):
        yield vector(f"{prefix}.shared_expert_gate", hidden)
    if config["model_type"] == "gpt_oss":
        yield vector(f"{prefix}.experts.bias", 2 * inner + hidden, experts)
        yield vector(f"{prefix}.router.bias", experts)
    if config.get("enable_moe_block") is True:  # Gemma 4 has a dense one beside its experts
        yield from _dense(config, hidden, _dense_size(config), prefix)


def _block_size(config: Config, index: int) -> int:
    """Nemotron-NAS: each layer's own width, a multiple of two thirds of the hidden size."""
    blocks = config["block_configs"]
    part = fields.part(blocks[index] if isinstance(blocks, list) else {}, "ffn")
    if part.get("no_op") is True:
        return 0
    if part.get("intermediate_size") is not None:
        return fields.read_int(part, "intermediate_size")
    wanted = 2 * fields.read_float(part, "ffn_mult") * fields.hidden_size(config) / 3
    return ceil(int(wanted) / _BLOCK_MULTIPLE) * _BLOCK_MULTIPLE


def num_experts(config: Config) -> int:
    """Routed experts of a layer; 0 for a dense model."""
    names = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
    stated = next((name for name in names if config.get(name) is not None), None)
    ffn = fields.part(config, "ffn_config")
    if stated is None and ffn.get("moe_num_experts") is not None:
        return fields.read_count(ffn, "moe_num_experts")
    return 0 if stated is None else fields.read_count(config, stated)


def is_gated(config: Config) -> bool:
    """Whether a gate stands beside the activation."""
    if "feed_forward_proj" in config or config["model_type"] in ("t5", "mt5", "umt5"):
        return "gated" in str(config.get("feed_forward_proj", ""))
    return config["model_type"] not in _PLAIN


def _is_sparse(config: Config, index: int) -> bool:
    """Whether layer ``index`` has experts, by whichever key the family says so."""
    types = fields.per_layer(config, "mlp_layer_types")
    if types is not None:
        return str(types[index]) != "dense"
    if isinstance(config.get("moe_layer_freq"), list):
        listed = fields.per_layer(config, "moe_layer_freq") or []
        return bool(listed[index])
    if index in fields.indices(config, "mlp_only_layers"):
        return False
    if index < fields.read_count(config, "first_k_dense_replace", 0):
        return False
    if config.get("interleave_moe_layer_step") is not None:
        step = fields.read_int(config, "interleave_moe_layer_step")
        return (index + 1) % step == 0
    if config.get("expert_layer_period") is not None:
        period = fields.read_int(config, "expert_layer_period")
        return index % period == fields.read_count(config, "expert_layer_offset", 0)
    return (index + 1) % fields.read_int(config, "decoder_sparse_step", default=1) == 0


def _shared_size(config: Config, inner: int) -> int:
    """Width of the experts that every token goes through, all together."""
    for name in (
        "moe_shared_expert_intermediate_size",
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "share_expert_dim",
    ):
        if config.get(name) is not None:
            return fields.read_count(config, name)
    if config["model_type"] == "llama4_text":
        return inner
    for name in ("n_shared_experts", "num_shared_experts"):
        if config.get(name) is not None:
            return fields.read_count(config, name) * inner
    return 0


def _dense_size(config: Config) -> int:
    names = (
        "dense_intermediate_size",
        "intermediate_size_mlp",
        "intermediate_size",
        "ffn_dim",
        "decoder_ffn_dim",
        "d_ff",
        "n_inner",
        "ffn_hidden_size",
        "shared_intermediate_size",
    )
    stated = config.get("intermediate_size")
    if isinstance(stated, list) and stated:  # Gemma 3n lists one a layer, all alike
        return fields.read_int({"intermediate_size": stated[0]}, "intermediate_size")
    default = 4 * fields.hidden_size(config)
    return fields.read_int(config, *names, default=default)


def _dense(config: Config, hidden: int, inner: int, prefix: str) -> Iterator[Weight]:
    for name, inputs, outputs in _matrices(config, hidden, inner):
        yield linear(f"{prefix}.{name}", inputs, outputs)


def _matrices(config: Config, hidden: int, inner: int) -> Iterator[tuple[str, int, int]]:
    if not inner:
        return
    if is_gated(config):
        yield "gate_proj", hidden, inner
    yield "up_proj", hidden, inner
    yield "down_proj", inner, hidden
