"""The arithmetic, and the answers that others get wrong."""

import pytest

from kvikk.errors import ModelError
from kvikk.shapes.cost import CacheCost, Part, cache_cost, rank_cost
from kvikk.shapes.dtypes import DTYPE_NAMES, cache_dtype, kv_dtypes
from kvikk.shapes.families import read_shape
from kvikk.shapes.shape import LayerKind
from tests.shapes.configurations import published

MIB = 2**20


def cost_of(name: str, dtype: str | None = None, **changes: object) -> CacheCost:
    shape = read_shape({**published(name), **changes})
    return cache_cost(shape, None if dtype is None else kv_dtypes(dtype))


def test_gemma_2_slides_every_other_layer_also_where_its_file_lists_no_layers() -> None:
    """6,048 MiB at 32,768: not 1,344, which is all layers sliding, nor 10,752, which is none."""
    assert "layer_types" not in published("gemma2-GaMS-9B-Instruct")
    assert cost_of("gemma2-GaMS-9B-Instruct").bytes_at(32_768) == 6048 * MIB


def test_qwen_2_slides_layers_from_max_window_layers_up() -> None:
    changes = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 21}
    shape = read_shape({**published("qwen2-qwen2.5-7b-instruct"), **changes})
    kinds = [layer.kind for layer in shape.layers]
    assert kinds == [LayerKind.FULL] * 21 + [LayerKind.SLIDING] * 7


def test_qwen_2_ignores_its_window_unless_it_is_to_be_used() -> None:
    stated = published("qwen2-qwen2.5-7b-instruct")
    assert stated["sliding_window"] == 131_072
    shape = read_shape({**stated, "sliding_window": 512})
    assert {layer.kind for layer in shape.layers} == {LayerKind.FULL}


def test_the_indexer_of_deepseek_v32_stores_132_bytes_whatever_the_cache_is_kept_in() -> None:
    for dtype, latent in (("bf16", 1152), ("fp8", 576), ("fp8_ds_mla", 656)):
        cost = cost_of("deepseek_v32-DeepSeek-V3.2", dtype)
        assert cost.bytes_per_token == 61 * (latent + 132)


def test_gemma_3_27b_and_qwen_35_27b_are_not_full_attention_throughout() -> None:
    gemma = read_shape(
        {
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text",
                "num_hidden_layers": 62,
                "num_attention_heads": 32,
                "num_key_value_heads": 16,
                "head_dim": 128,
                "sliding_window": 1024,
            },
        }
    )
    assert sum(layer.kind == LayerKind.FULL for layer in gemma.layers) == 10
    # (10 full layers * 131,072 + 52 * 1,024) tokens * 2 * 16 heads * 128 * 2 bytes
    assert cache_cost(gemma).bytes_at(131_072) == (10 * 131_072 + 52 * 1024) * 2 * 16 * 128 * 2
    qwen = read_shape(published("qwen3_5-Qwen3.5-27B"))
    assert sum(layer.kind == LayerKind.FULL for layer in qwen.layers) == 16
    assert sum(layer.kind == LayerKind.STATE for layer in qwen.layers) == 48


@pytest.mark.parametrize(
    ("name", "stated", "divided"),
    [
        ("mistral-mistral-nemo-instruct-2407", 128, 160),
        ("gpt_oss-gpt-oss-20b", 64, 45),
        ("qwen3-Qwen3-0.6B", 128, 64),
    ],
)
def test_a_stated_head_size_is_not_hidden_size_over_heads(
    name: str, stated: int, divided: int
) -> None:
    config = published(name)
    assert config["hidden_size"] // config["num_attention_heads"] == divided
    for layer in read_shape(config).layers:
        assert layer.key_elements == config["num_key_value_heads"] * stated


@pytest.mark.parametrize("tp", [1, 2, 8, 64])
def test_latents_and_indexers_are_not_divided_among_ranks(tp: int) -> None:
    shape = read_shape(published("deepseek_v32-DeepSeek-V3.2"))
    assert rank_cost(shape, tp=tp) == cache_cost(shape)


def test_v_is_stored_in_gemma_4_even_where_it_is_k() -> None:
    config = published("gemma4-gemma-4-26B-A4B")["text_config"]
    assert config["attention_k_eq_v"] is True
    full = read_shape(config).layers[5]
    assert (full.key_elements, full.value_elements) == (2 * 512, 2 * 512)


def test_layers_that_share_a_cache_cost_nothing() -> None:
    config = {
        "model_type": "gemma3n_text",
        "num_hidden_layers": 30,
        "num_kv_shared_layers": 10,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "sliding_window": 512,
    }
    shape = read_shape(config)
    assert [layer.shares_with for layer in shape.layers[20:]] == [18] * 4 + [19] + [18] * 4 + [19]
    assert cache_cost(shape).bytes_per_token == 20 * 2 * 2 * 256 * 2


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (4, 2), (8, 1), (16, 1), (64, 1)])
def test_heads_are_divided_among_ranks_and_copied_when_there_are_more_ranks(
    tp: int, heads: int
) -> None:
    shape = read_shape(published("llama-Meta-Llama-3.1-70B"))
    assert rank_cost(shape, tp=tp).bytes_per_token == 80 * 2 * heads * 128 * 2


def test_with_data_parallel_attention_a_rank_holds_the_whole_cache_of_its_own() -> None:
    shape = read_shape(published("llama-Meta-Llama-3.1-70B"))
    assert rank_cost(shape, tp=8, dp_attention=True) == cache_cost(shape)


def test_states_are_divided_and_their_shared_groups_copied() -> None:
    """Nemotron 3 Nano: 8 groups; among 16 ranks each takes part in one, kept twice."""
    shape = read_shape(published("nemotron_h-NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"))
    recurrent = 64 * 64 * 128 * 4
    assert cache_cost(shape).fixed_bytes == 23 * ((4096 + 2 * 8 * 128) * 3 * 2 + recurrent)
    assert rank_cost(shape, tp=8).fixed_bytes * 8 == cache_cost(shape).fixed_bytes
    in_16 = 23 * ((4096 + 2 * 16 * 128) * 3 * 2 + recurrent) // 16
    assert rank_cost(shape, tp=16).fixed_bytes == in_16


@pytest.mark.parametrize(
    ("dtype", "row_bytes"),
    [
        ("f32", 512),
        ("f16", 256),
        ("bf16", 256),
        ("fp8", 128),
        ("int8", 128),
        ("int4", 64),
        ("q8_0", 136),
        ("q5_1", 96),
        ("q5_0", 88),
        ("q4_1", 80),
        ("q4_0", 72),
        ("iq4_nl", 72),
        ("int8_per_token_head", 132),
        ("fp8_per_token_head", 132),
        ("nvfp4", 72),
        ("fp8_ds_mla", 128),
    ],
)
def test_a_head_of_128_in_every_type(dtype: str, row_bytes: int) -> None:
    assert cache_dtype(dtype).row_bytes(128) == row_bytes
    assert cache_dtype(dtype).row_bytes(8 * 128, heads=8) == 8 * row_bytes


def test_every_type_is_tested_and_known_by_its_other_names() -> None:
    assert len(DTYPE_NAMES) == 16
    for name, other in (("bf16", "torch.bfloat16"), ("f16", "half"), ("fp8", "fp8_e4m3")):
        assert cache_dtype(other) == cache_dtype(name)
    with pytest.raises(ModelError, match="no data type 'q3_9'; known: f32 f16"):
        cache_dtype("q3_9")


def test_rows_that_do_not_fill_blocks_are_refused() -> None:
    with pytest.raises(ModelError, match="q8_0 packs 32 elements together; rows of 80 elements"):
        cache_dtype("q8_0").row_bytes(80)


def test_keys_and_values_may_be_of_two_types() -> None:
    shape = read_shape(published("llama-Meta-Llama-3.1-8B"))
    cost = cache_cost(shape, kv_dtypes("q8_0", "q4_0"))
    assert cost.bytes_per_token == 32 * 8 * (136 + 72)


def test_the_slope_falls_where_windows_are_full() -> None:
    cost = cost_of("gpt_oss-gpt-oss-20b")
    layer = 2 * 8 * 64 * 2
    assert cost.bytes_per_token_at(0) == cost.bytes_per_token == 24 * layer
    assert cost.bytes_per_token_at(127) == 24 * layer
    assert cost.bytes_per_token_at(128) == 12 * layer
    for context in (0, 1, 127, 128, 129, 5000):
        step = cost.bytes_at(context + 1) - cost.bytes_at(context)
        assert step == cost.bytes_per_token_at(context)


def test_a_latent_for_several_tokens_comes_with_the_last_of_them() -> None:
    part = Part("compressed", 584, tokens_per_entry=4)
    assert [part.entries_at(context) for context in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]
    assert part.bytes_per_token == 146


@pytest.mark.parametrize("dtype", ["fp8", "fp8_ds_mla"])
def test_deepseek_v4_packs_its_latents_into_584_bytes_in_fp8(dtype: str) -> None:
    name = "deepseek_v4-DeepSeek-V4-Flash"
    assert cost_of(name, dtype) == cost_of(name)
    kinds = {str(part.kind): part.bytes_per_entry for part, _ in cost_of(name).parts}
    assert kinds == {"sliding": 584, "compressed": 584, "indexer": 132}
    in_bf16 = {str(part.kind): part.bytes_per_entry for part, _ in cost_of(name, "bf16").parts}
    assert in_bf16 == {"sliding": 1024, "compressed": 1024, "indexer": 132}


def test_cross_attention_costs_what_the_encoder_gives() -> None:
    shape = read_shape(published("t5-t5-small"))
    token = 6 * 2 * 8 * 64 * 4
    assert cache_cost(shape, encoder_tokens=100).fixed_bytes == 100 * token
    assert cache_cost(shape, encoder_tokens=0).bytes_at(10) == 10 * token
