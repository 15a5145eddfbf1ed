"""Weights of attention: projections by heads, latents with their factors, indexers."""

from collections.abc import Iterator

from kvikk.shapes import config as fields
from kvikk.shapes.config import Config
from kvikk.shapes.shape import LayerCache
from kvikk.shapes.weights.records import Weight, linear, vector

# fmt: off
# Biases on queries, keys and values, though no key of the configuration says so.
_QKV_BIAS = {
    "dream", "mimo", "qwen", "qwen2", "qwen2_5_omni_text", "qwen2_5_vl", "qwen2_5_vl_text",
    "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "chatglm",
}
# Norms of queries and keys, one head long.
_HEAD_NORMS = {
    "gemma3_text", "gemma3n_text", "gemma4_text", "qwen3", "qwen3_5_moe_text", "qwen3_5_text",
    "qwen3_moe", "qwen3_next", "qwen3_vl_moe_text", "qwen3_vl_text", "exaone4", "lfm2", "lfm2_moe",
    "minimax_m3", "hunyuan_v1_dense", "hunyuan_v1_moe", "apertus",
}
# Norms of all queries and of all keys together.
_WHOLE_NORMS = {"flex_olmo", "minimax_m2", "olmo2", "olmo3", "olmoe"}
# fmt: on


def attention(config: Config, layer: LayerCache, index: int, prefix: str) -> Iterator[Weight]:
    """Weights of one layer's attention with the heads that its cache has.

    Raises ModelError if the configuration lacks what they depend on.
    """
    family = config["model_type"]
    hidden = fields.hidden_size(config)
    cross = layer.cross if layer.cross is not None and not layer.key_elements else None
    key_size = cross.key_elements if cross else layer.key_elements
    value_size = cross.value_elements if cross else layer.value_elements
    head_dim, value_dim = key_size // layer.kv_heads, value_size // layer.kv_heads
    queries = _query_heads(config, layer, index)
    inner = hidden * (2 if family in ("zamba", "zamba2") else 1)
    gates = 2 if config.get("attn_output_gate") or family == "qwen3_next" else 1
    yield linear(f"{prefix}.q_proj", inner, gates * queries * head_dim)
    yield linear(f"{prefix}.k_proj", inner, key_size)
    if not (config.get("attention_k_eq_v") is True and layer.window_tokens is None):
        yield linear(f"{prefix}.v_proj", inner, value_size)
    yield linear(f"{prefix}.o_proj", queries * value_dim, hidden)
    if config.get("attention_bias") is True or family in _QKV_BIAS or family == "gpt_oss":
        yield vector(f"{prefix}.bias", queries * head_dim + key_size + value_size)
    if family == "gpt_oss" or (config.get("attention_bias") is True and family == "llama"):
        yield vector(f"{prefix}.o_proj.bias", hidden)
    if family == "gpt_oss":
        yield vector(f"{prefix}.sinks", queries)
    if family in _HEAD_NORMS:
        yield vector(f"{prefix}.norms", 2 * head_dim)
    if family in _WHOLE_NORMS:
        yield vector(f"{prefix}.norms", queries * head_dim + key_size)


def _query_heads(config: Config, layer: LayerCache, index: int) -> int:
    if layer.window_tokens is not None and config.get("swa_num_attention_heads") is not None:
        return fields.read_int(config, "swa_num_attention_heads")
    return fields.num_heads(config, index)


def latent_attention(config: Config, layer: LayerCache, prefix: str) -> Iterator[Weight]:
    """Weights of attention over latents: queries and keys are products of two factors."""
    hidden, heads = fields.hidden_size(config), fields.num_heads(config)
    rank, rope = (
        fields.read_int(config, "kv_lora_rank"),
        fields.read_int(config, "qk_rope_head_dim"),
    )
    nope = fields.read_int(config, "qk_nope_head_dim", default=128)
    value_dim = fields.read_int(config, "v_head_dim", default=128)
    query_size = heads * (nope + rope)
    query_rank = fields.read_count(config, "q_lora_rank", 0)
    if query_rank:
        yield linear(f"{prefix}.q_a_proj", hidden, query_rank)
        yield vector(f"{prefix}.q_a_layernorm", query_rank)
        yield linear(f"{prefix}.q_b_proj", query_rank, query_size)
    else:
        yield linear(f"{prefix}.q_proj", hidden, query_size)
    yield linear(f"{prefix}.kv_a_proj_with_mqa", hidden, rank + rope)
    yield vector(f"{prefix}.kv_a_layernorm", rank)
    yield linear(f"{prefix}.kv_b_proj", rank, heads * (nope + value_dim))
    yield linear(f"{prefix}.o_proj", heads * value_dim, hidden)
    if config.get("mla_use_output_gate") is True:
        yield linear(f"{prefix}.g_proj", hidden, heads * value_dim)
    if layer.indexer is not None:
        yield from _indexer(config, query_rank or hidden, f"{prefix}.indexer")


def _indexer(config: Config, inputs: int, prefix: str) -> Iterator[Weight]:
    hidden = fields.hidden_size(config)
    heads, size = (
        fields.read_int(config, "index_n_heads"),
        fields.read_int(config, "index_head_dim"),
    )
    yield linear(f"{prefix}.wq_b", inputs, heads * size)
    yield linear(f"{prefix}.wk", hidden, size)
    yield vector(f"{prefix}.weights_proj", hidden * heads)
    yield vector(f"{prefix}.k_norm", 2 * size)


def deepseek_v4_attention(config: Config, layer: LayerCache, prefix: str) -> Iterator[Weight]:
    """One latent as key and value, an output in two factors by groups, and compressors."""
    hidden, heads = fields.hidden_size(config), fields.num_heads(config)
    head_dim, query_rank = fields.head_dim(config), fields.read_int(config, "q_lora_rank")
    out_rank, groups = fields.read_int(config, "o_lora_rank"), fields.read_int(config, "o_groups")
    yield linear(f"{prefix}.wq_a", hidden, query_rank)
    yield linear(f"{prefix}.wq_b", query_rank, heads * head_dim)
    yield linear(f"{prefix}.wkv", hidden, head_dim)
    yield linear(f"{prefix}.wo_a", heads * head_dim, out_rank)
    yield linear(f"{prefix}.wo_b", groups * out_rank, hidden)
    yield vector(f"{prefix}.norms", query_rank + head_dim + heads)
    if layer.compressed is not None:
        overlap = 2 if layer.indexer is not None else 1
        yield vector(f"{prefix}.compressor", 2 * overlap * hidden * head_dim)
        if layer.indexer is not None:
            index_heads = fields.read_int(config, "index_n_heads")
            size = fields.read_int(config, "index_head_dim")
            yield linear(f"{prefix}.indexer.wq_b", query_rank, index_heads * size)
            yield vector(f"{prefix}.indexer.weights_proj", hidden * index_heads)
            yield vector(f"{prefix}.indexer.compressor", 2 * overlap * hidden * size)
