"""Layers that compress a token to one latent for all heads, alone or with a sparse indexer.

Elements per token and layer: ``kv_lora_rank + qk_rope_head_dim``, once: neither for keys and for
values nor for each head. An indexer adds a key of ``index_head_dim`` elements in fp8 and a float32
scale for every 128 of them (vLLM's ``deepseek_v2.py``): 132 bytes for 128 elements.
"""

from collections.abc import Mapping
from dataclasses import replace

from kvikk.errors import ModelError
from kvikk.shapes import config as fields
from kvikk.shapes.config import Config
from kvikk.shapes.families.full import full_attention
from kvikk.shapes.families.layers import Family, Layers, Maker, by_types
from kvikk.shapes.shape import Entries, LayerCache, LayerKind

_INDEX_SCALE_ELEMENTS, _INDEX_SCALE_BYTES = 128, 4

# FlashMLA's packed rows: fp8 with scales, the rotated part in bf16. DeepSeek V3.2 has a float32
# scale for 128 elements, V4 a byte for 64 and one more. vLLM's ``v1/kv_cache_interface.py``.


def _packed_v32_bytes(rank: int, rope: int) -> int:
    return rank + -(-rank // 128) * 4 + 2 * rope  # 656 for 512 and 64


def _packed_v4_bytes(plain: int, rope: int) -> int:
    return plain + -(-plain // 64) + 1 + 2 * rope  # 584 for 448 and 64


def latent_layer(config: Config) -> LayerCache:
    """One latent a token: the compressed keys and values, and the rotated part of the key."""
    rank = fields.read_int(config, "kv_lora_rank")
    rope = fields.read_int(config, "qk_rope_head_dim")
    return LayerCache(LayerKind.LATENT, rank + rope, packed_bytes=_packed_v32_bytes(rank, rope))


def latent(config: Config) -> Layers:
    """Every layer keeps a latent, unless ``use_mla`` says that heads are plain (DeepSeek VL 2)."""
    if config.get("use_mla") is False:
        return full_attention(config)
    makers: dict[str, Maker] = {"full_attention": lambda index: latent_layer(config)}
    return by_types(config, makers, lambda index: "full_attention")


def longcat(config: Config) -> Layers:
    """Two attention blocks in each of ``num_layers`` layers."""
    if config.get("num_layers") is None:
        return latent(config)
    blocks = 2 * fields.read_int(config, "num_layers", largest=5_000)
    return latent({**config, "num_hidden_layers": blocks})


def indexed_latent(config: Config) -> Layers:
    """A latent in every layer, and an indexer's key in those that choose tokens by themselves.

    ``indexer_types`` lists them; else ``index_topk_pattern`` or ``index_topk_freq``; by default
    each layer has its own.
    """
    plain = latent_layer(config)
    indexed = replace(plain, indexer=_indexer(config))
    types = _indexer_types(config)
    makers: dict[str, Maker] = {
        "indexed_attention": lambda index: indexed if types[index] == "full" else plain,
        "full_attention": lambda index: plain,
    }
    return by_types(config, makers, lambda index: "indexed_attention")


def _indexer(config: Config, tokens_per_entry: int = 1) -> Entries:
    elements = fields.read_int(config, "index_head_dim")
    scales = -(-elements // _INDEX_SCALE_ELEMENTS)
    return Entries(elements, tokens_per_entry, elements + scales * _INDEX_SCALE_BYTES)


def _indexer_types(config: Config) -> list[str]:
    names = fields.per_layer(config, "indexer_types")
    pattern = config.get("index_topk_pattern")
    if names is None and isinstance(pattern, str | list):
        letters = {"F": "full", "S": "shared"}
        names = [letters.get(str(letter), str(letter)) for letter in pattern]
    if names is None:
        period = fields.read_int(config, "index_topk_freq", default=1)
        offset = fields.read_count(config, "index_skip_topk_offset", default=2)
        names = [
            "shared" if max(index - offset + 1, 0) % period else "full"
            for index in range(fields.num_layers(config))
        ]
    known = all(name in ("full", "shared") for name in names)
    if len(names) < fields.num_layers(config) or not known:
        raise ModelError(
            "the model's configuration: indexers are not listed as full or shared for each layer"
        )
    return names


_V4_INDEXED_RATIO = 4

# How many tokens a compressed latent of DeepSeek V4 stands for, by the layer's type.
_V4_TOKENS_PER_LATENT = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def deepseek_v4(config: Config) -> Layers:
    """Every layer keeps a window of latents; most also keep one for every 4 or 128 tokens.

    ``compress_ratios`` gives that number for each layer, 0 for none. Where it is 4, an indexer
    chooses among them with keys of its own. What a compressor holds of an unfinished entry is its
    working memory and not counted.
    """
    head_dim = fields.read_int(config, "head_dim")
    rope = min(fields.read_int(config, "qk_rope_head_dim", default=64), head_dim)
    window = LayerCache(
        LayerKind.SLIDING,
        head_dim,
        window_tokens=fields.read_int(config, "sliding_window"),
        packed_bytes=_packed_v4_bytes(head_dim - rope, rope),
    )
    return tuple(_compressed(config, window, ratio) for ratio in _compress_ratios(config))


def _compressed(config: Config, window: LayerCache, ratio: int) -> LayerCache:
    if not ratio:
        return window
    latents = Entries(window.key_elements, ratio, window.packed_bytes)
    indexer = _indexer(config, ratio) if ratio == _V4_INDEXED_RATIO else None
    return replace(window, compressed=latents, indexer=indexer)


def _compress_ratios(config: Config) -> list[int]:
    rates = {**_V4_TOKENS_PER_LATENT, **fields.part(config, "compress_rates")}
    names = fields.layer_types(config)
    if names is not None:
        return [0 if name == "sliding_attention" else _ratio(rates, name) for name in names]
    ratios = fields.per_layer(config, "compress_ratios")
    if ratios is None:
        heavy, sparse = rates["heavily_compressed_attention"], rates["compressed_sparse_attention"]
        odd = [heavy, sparse]
        return [
            heavy if index < 2 else odd[index % 2] for index in range(fields.num_layers(config))
        ]
    if not all(type(ratio) is int and 0 <= ratio <= 1 << 20 for ratio in ratios):
        raise ModelError("the model's configuration: compress_ratios holds no whole numbers")
    return ratios


def _ratio(rates: Mapping[str, object], name: str) -> int:
    if name not in rates:
        raise ModelError(f"the model's configuration: a layer of the unknown type {name!r}")
    return fields.read_int(rates, name)


def minimax_m3(config: Config) -> Layers:
    """Keys and values everywhere, and one indexer key of their type where attention is sparse.

    ``layer_types`` or ``sparse_attention_freq`` says where; the indexer keeps values too unless
    ``sparse_disable_index_value`` (SGLang's ``pool_configurator.py``).
    """
    layers = full_attention({**config, "layer_types": None})
    sparse = fields.part(config, "sparse_attention_config")
    indexed = fields.flags({**config, **sparse}, "sparse_attention_freq")
    if (names := fields.layer_types(config)) is not None:
        indexed = [name != "full_attention" for name in names]
    if not indexed or not any(indexed):
        return layers
    without_values = fields.flags({**config, **sparse}, "sparse_disable_index_value")
    elements = fields.read_int(sparse, "sparse_index_dim")
    keys, both = Entries(elements), Entries(2 * elements)
    indexers = [keys if without_values and without_values[i] else both for i in range(len(layers))]
    return tuple(
        replace(layer, indexer=indexers[index]) if indexed[index] else layer
        for index, layer in enumerate(layers)
    )


# fmt: off
_LATENT = (
    "axk1", "deepseek_v2", "deepseek_v3", "dots_vlm", "glm4_moe_lite", "kimi_k2", "minicpm3",
    "mistral4", "sarvam_mla", "youtu",
)
_INDEXED = (
    "axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4", "hy_v4_vl_text", "mistral_large4_text",
)
# fmt: on

LATENT: dict[str, Family] = {
    **dict.fromkeys(_LATENT, latent),
    **dict.fromkeys(_INDEXED, indexed_latent),
    "deepseek_v4": deepseek_v4,
    "longcat_flash": longcat,
    "minimax_m3": minimax_m3,
    "minimax_m3_vl_text": minimax_m3,
}
