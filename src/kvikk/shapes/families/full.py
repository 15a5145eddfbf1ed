"""Layers that all see everything: multi-head, grouped and multi-query attention.

Elements per token and layer: 2 · KV heads · head size.
"""

from dataclasses import replace

from kvikk.errors import ModelError
from kvikk.shapes import config as fields
from kvikk.shapes.config import Config
from kvikk.shapes.families.layers import Family, Layers, attention_makers, by_types, kv_layer


def full_attention(config: Config) -> Layers:
    """Every layer alike, unless ``layer_types`` says otherwise."""
    return by_types(config, attention_makers(config), lambda index: "full_attention")


def falcon(config: Config) -> Layers:
    """One KV head in the 7B's architecture, whatever ``num_kv_heads`` says; groups in the newer."""
    old_groups = config.get("n_head_kv") is not None and config.get("num_kv_heads") is None
    grouped = config.get("new_decoder_architecture") is True or old_groups
    if not grouped and config.get("multi_query", True) is True:
        return full_attention({**config, "num_kv_heads": 1})
    if not grouped:
        return full_attention({**config, "num_kv_heads": None})
    return full_attention(config)


def gpt_bigcode(config: Config) -> Layers:
    """One KV head where ``multi_query`` is set, as it is in all published models."""
    if config.get("multi_query", True) is True:
        return full_attention({**config, "num_key_value_heads": 1})
    return full_attention(config)


def chatglm(config: Config) -> Layers:
    """Groups where ``multi_query_attention`` is set; the head size is ``kv_channels``."""
    heads = None
    if config.get("multi_query_attention") is True:
        heads = fields.read_int(config, "multi_query_group_num")
    return full_attention({**config, "num_key_value_heads": heads})


def databricks(config: Config) -> Layers:
    """MPT and DBRX: the KV heads lie in an ``attn_config`` of their own."""
    attention = fields.part(config, "attn_config")
    return full_attention({**config, "num_key_value_heads": attention.get("kv_n_heads")})


def openelm(config: Config) -> Layers:
    """KV heads by layer, in ``num_kv_heads``; the head size is ``head_dim``."""
    heads = config.get("num_query_heads")
    layers = fields.read_int(config, "num_transformer_layers", "num_hidden_layers", largest=10_000)
    return full_attention({**config, "num_attention_heads": heads, "num_hidden_layers": layers})


def hunyuan(config: Config) -> Layers:
    """With ``use_cla``, only the first of every ``cla_share_factor`` layers has a cache."""
    layers = full_attention(config)
    if config.get("use_cla") is not True:
        return layers
    factor = fields.read_int(config, "cla_share_factor", default=1)
    return tuple(
        replace(layer, shares_with=index - index % factor) if index % factor else layer
        for index, layer in enumerate(layers)
    )


def deci(config: Config) -> Layers:
    """Nemotron-NAS: ``block_configs`` gives each layer's query heads to a KV head, or no attention.

    DeciLM 6B and 7B list ``num_key_value_heads_per_layer`` instead.
    """
    if "num_key_value_heads_per_layer" in config:
        heads = config["num_key_value_heads_per_layer"]
        return full_attention({**config, "num_key_value_heads": heads})
    blocks = config.get("block_configs")
    expected = fields.num_layers(config)
    if not isinstance(blocks, list) or len(blocks) != expected:
        raise ModelError(
            f"the model's configuration: block_configs does not describe {expected} layers"
        )
    queries, head_dim = fields.num_heads(config), fields.head_dim(config)
    layers = []
    for block in blocks:
        attention = fields.part(block, "attention")
        if attention.get("no_op") is True or attention.get("replace_with_linear") is True:
            layers.append(kv_layer(0, head_dim))
        else:
            layers.append(
                kv_layer(queries // fields.read_int(attention, "n_heads_in_group"), head_dim)
            )
    return tuple(layers)


# fmt: off
_PLAIN = (
    "apertus", "apertus1p5_text", "aquila", "arcee", "arctic", "aria_text", "baichuan",
    "bailing_moe", "bailing_moe_v2", "biogpt", "bitnet", "bloom", "chameleon", "codegen",
    "codeshell", "cogvlm", "cohere", "cohere_compass_text", "cosmos3_edge_text", "cpmant", "ctrl",
    "deepseek", "deepseek_ocr2_text", "diffllama", "doge", "dots1", "emu3_text_model", "ernie4_5",
    "ernie4_5_moe", "ernie4_5_moe_vl", "ernie4_5_vl_moe_text", "evolla", "exaone", "flex_olmo",
    "gemma", "glm", "glm4", "glm4_moe", "glm4v_moe_text", "glm4v_text", "glm_ocr_text", "gpt2",
    "gpt_neo", "gpt_neox", "gpt_neox_japanese", "gptj", "granite", "granite4_vision_text",
    "granite_docling_text", "granitemoe", "granitemoeshared", "grok", "grok-1", "grove_moe",
    "grovemoe", "helium", "hrm_text", "hunyuan_vl_text", "hy_v3", "hyperclovax", "idefics",
    "internlm", "internlm2", "internlm3", "iquestcoder", "jais", "jais2", "jetmoe", "llada",
    "llada-moe", "llada_moe", "llama", "maincoder", "minicpm", "minimax_m2", "ministral3", "molmo",
    "molmo2_text", "nanochat", "nemotron", "olmo", "olmo2", "olmoe", "openai-gpt", "opt", "orion",
    "ouro", "paddleocr_vl_text", "pangu-embedded", "PanguEmbedded", "persimmon", "phi", "phi-msft",
    "phi3small", "phi4_multimodal", "plamo", "qwen", "qwen3_vl_moe_text", "qwen3_vl_text",
    "refact", "rnd1", "sarvam_moe", "seed_oss", "skywork", "solar", "solar_open", "stablelm",
    "stablelm_epoch", "starcoder", "step3", "step3_text", "telechat", "xglm", "xverse", "yi",
)
# fmt: on

FULL: dict[str, Family] = {
    **dict.fromkeys(_PLAIN, full_attention),
    "RefinedWeb": falcon,
    "RefinedWebModel": falcon,
    "chatglm": chatglm,
    "dbrx": databricks,
    "deci": deci,
    "falcon": falcon,
    "gpt_bigcode": gpt_bigcode,
    "hunyuan": hunyuan,
    "hunyuan_v1_dense": hunyuan,
    "hunyuan_v1_moe": hunyuan,
    "mpt": databricks,
    "nemotron-nas": deci,
    "openelm": openelm,
}
