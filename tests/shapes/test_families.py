from typing import Any

import pytest
import transformers

from kvikk.errors import ModelError
from kvikk.files.sources import resolve
from kvikk.shapes.families import read_shape
from kvikk.shapes.shape import CacheGroup, LayerKind, cache_groups

LLAMA_31_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}


def elements_per_token(config: dict[str, Any]) -> int:
    return sum(group.elements_per_token for group in cache_groups(read_shape(config)))


def test_llama_31_8b_takes_the_published_128_kib_a_token_in_fp16() -> None:
    assert elements_per_token(LLAMA_31_8B) * 2 == 128 * 1024


def test_smollm2_takes_the_published_23040_bytes_a_token_in_bf16() -> None:
    shape = read_shape(resolve("smollm2").config)
    assert shape.context_tokens == 8192
    assert cache_groups(shape) == (CacheGroup(tuple(range(30)), 192, 192, None, 3),)
    assert cache_groups(shape)[0].elements_per_token * 2 == 23_040


def test_llama_2_7b_without_shared_heads_takes_2_gib_at_its_full_context() -> None:
    config = {**LLAMA_31_8B, "num_key_value_heads": 32, "max_position_embeddings": 4096}
    assert elements_per_token(config) * 2 * 4096 == 2 << 30
    del config["num_key_value_heads"]
    assert elements_per_token(config) * 2 * 4096 == 2 << 30


def test_gemma3_270m_is_15_sliding_layers_and_3_full_ones() -> None:
    groups = cache_groups(read_shape(resolve("gemma3-270m").config))
    sliding = tuple(layer for layer in range(18) if layer not in (5, 11, 17))
    assert groups == (
        CacheGroup(sliding, 256, 256, 512, 1),
        CacheGroup((5, 11, 17), 256, 256, None, 1),
    )


@pytest.mark.parametrize("num_layers", [1, 6, 26, 34])
def test_gemma3_layers_are_those_that_transformers_makes(num_layers: int) -> None:
    """Both from the bare configuration, whose defaults then matter, and from the one it saves."""
    theirs = transformers.Gemma3TextConfig(num_hidden_layers=num_layers)
    bare = {"model_type": "gemma3_text", "num_hidden_layers": num_layers}
    for config in (bare, theirs.to_dict()):
        shape = read_shape(config)
        assert [f"{layer.kind}_attention" for layer in shape.layers] == theirs.layer_types
        assert shape.context_tokens == theirs.max_position_embeddings
        for layer in shape.layers:
            assert layer.key_elements == theirs.num_key_value_heads * theirs.head_dim
            expected_window = theirs.sliding_window if layer.kind == LayerKind.SLIDING else None
            assert layer.window_tokens == expected_window


def test_a_stated_head_size_outranks_hidden_size_over_heads() -> None:
    assert elements_per_token({**LLAMA_31_8B, "head_dim": 64}) == 32 * 2 * 8 * 64


def test_listed_layer_types_outrank_the_pattern() -> None:
    names = ["full_attention", "sliding_attention", "full_attention"]
    config = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 3,
        "layer_types": names,
        "sliding_window_pattern": 3,
    }
    assert [f"{layer.kind}_attention" for layer in read_shape(config).layers] == names


def test_the_language_model_is_found_beside_other_parts() -> None:
    nested = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}
    assert read_shape(nested) == read_shape({"model_type": "gemma3_text"})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"model_type": "nonesuch"},
            "'nonesuch' are not supported.*num_hidden_layers 32.*head_dim absent",
        ),
        ({"model_type": None}, "names no model_type"),
        ({"num_hidden_layers": None}, "lacks num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, not a positive whole number"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers is '32'"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; at most 10000"),
        ({"model_type": "gemma3_text", "num_hidden_layers": 10**15}, "at most 10000"),
        ({"head_dim": 10**9}, "head_dim is 1000000000; at most 65536"),
        ({"max_position_embeddings": 10**15}, "max_position_embeddings is 1000000000000000"),
        ({"num_key_value_heads": 5}, "32 query heads cannot share 5"),
        ({"hidden_size": 4097}, "4097 is not a multiple of 32 heads"),
        ({"max_position_embeddings": -1}, "max_position_embeddings is -1"),
        ({"text_config": 3}, "text_config is not an object"),
        ({"model_type": "gemma3_text", "layer_types": ["full_attention"]}, "does not name 32"),
        (
            {"model_type": "gemma3_text", "layer_types": ["state"] * 32},
            "a layer of the unknown type 'state'",
        ),
    ],
)
def test_a_configuration_that_makes_no_sense_is_one_line(
    changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ModelError, match=problem) as caught:
        read_shape({**LLAMA_31_8B, **changes})
    assert "\n" not in str(caught.value)


def test_listed_layers_outrank_the_letters_of_nemotron_h() -> None:
    config = {
        "model_type": "nemotron_h",
        "layers_block_type": ["mamba", "attention", "moe"],
        "hybrid_override_pattern": "***",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
    }
    kinds = [LayerKind.STATE, LayerKind.FULL, LayerKind.NONE]
    assert [layer.kind for layer in read_shape(config).layers] == kinds
