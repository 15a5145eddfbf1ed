"""Each family's layers, compared with the cache that transformers itself would make for it."""

from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING
from transformers.cache_utils import get_layer_types_and_kwargs
from transformers.models.xlstm.modeling_xlstm import xLSTMCache

from kvikk.errors import ModelError
from kvikk.shapes.cost import cache_cost
from kvikk.shapes.families import FAMILIES, read_shape
from kvikk.shapes.shape import LayerCache

KNOWN_TO_TRANSFORMERS = sorted(family for family in FAMILIES if family in CONFIG_MAPPING)

# Defaults of transformers' classes that no real model has: heads that do not divide the hidden
# size, which is then rounded down.
CHANGES: dict[str, dict[str, Any]] = {
    "glm4_moe": {"head_dim": 128},
    "glm4v_moe_text": {"head_dim": 128},
    "qwen3_omni_moe_text": {"head_dim": 128},
}

# transformers keeps these in other places than its cache of layers, or calls them full attention.
NOT_COMPARED = {
    "mllama_text_model": "cross-attention",
    "rwkv": "its own state",
    "xlstm": "its own state",
}

# These say nothing about their layers unless they list them.
ONLY_LISTED = {
    *("beam", "flint", "granite_swa", "granitemoe_swa", "kolibri1", "laguna", "lfm3", "mellum"),
    *("modernbert-decoder", "muse_glimmer_text", "muse_spark_text", "nemotron_h"),
}

# What a layer of each type keeps: keys and values, a state.
KEEPS = {
    "full_attention": (True, False),
    "indexed_attention": (True, False),
    "sliding_attention": (True, False),
    "chunked_attention": (True, False),
    "compressed_sparse_attention": (True, False),
    "heavily_compressed_attention": (True, False),
    "linear_attention": (False, True),
    "conv": (False, True),
    "hybrid": (True, True),
    "hybrid_sliding": (True, True),
    "dummy": (False, False),
}


def expected_layers(config: Any) -> list[tuple[bool, bool, int | None]]:
    names, arguments = get_layer_types_and_kwargs(config.get_text_config(decoder=True))
    # The compressed ones get their window, 128 tokens, from the configuration.
    return [
        (
            *KEEPS[name],
            given["config"].sliding_window if "config" in given else given.get("sliding_window"),
        )
        for name, given in zip(names, arguments, strict=True)
    ]


def layer(cache: LayerCache) -> tuple[bool, bool, int | None]:
    if cache.shares_with is not None:
        return False, False, None
    return cache.key_elements > 0, cache.state is not None, cache.window_tokens


@pytest.mark.parametrize("family", sorted(set(KNOWN_TO_TRANSFORMERS) - NOT_COMPARED.keys()))
def test_layers_are_of_the_kinds_that_transformers_makes(family: str) -> None:
    theirs = CONFIG_MAPPING[family](**CHANGES.get(family, {}))
    expected = expected_layers(theirs)
    listed = theirs.to_dict()
    assert [layer(cache) for cache in read_shape(listed).layers] == expected
    lists = ("layer_types", "layers_block_type", "per_layer_config")
    bare = {name: value for name, value in listed.items() if name not in lists}
    if family not in ONLY_LISTED:
        assert [layer(cache) for cache in read_shape(bare).layers] == expected


@pytest.mark.parametrize("family", ["beam", "muse_spark_text", "nemotron_h"])
def test_a_family_that_lists_its_layers_is_refused_without_the_list(family: str) -> None:
    listed = CONFIG_MAPPING[family]().to_dict()
    bare = {name: value for name, value in listed.items() if not name.startswith("layer")}
    with pytest.raises(ModelError, match="lacks"):
        read_shape(bare)


def test_an_xlstm_s_state_is_what_transformers_allocates() -> None:
    theirs = CONFIG_MAPPING["xlstm"](num_hidden_layers=3)
    cache = xLSTMCache(theirs, 1, torch.float32)
    held = sum(tensor.nbytes for state in cache.rnn_state.values() for tensor in state)
    assert cache_cost(read_shape(theirs.to_dict())).fixed_bytes == held


def test_most_families_are_compared() -> None:
    assert len(KNOWN_TO_TRANSFORMERS) > 170
