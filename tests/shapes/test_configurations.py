"""Every published configuration at hand, against figures derived by hand from its keys.

Each figure is written as its derivation: layers * (2 for keys and values) * KV heads * head size *
bytes, a latent as rank + rotated part, a state by the formula of its kind.
"""

from typing import NamedTuple

import pytest

from kvikk.shapes.cost import cache_cost
from kvikk.shapes.dtypes import kv_dtypes
from kvikk.shapes.families import read_shape
from tests.shapes.configurations import published, published_names

T = 32_768


class Expected(NamedTuple):
    """Bytes a token at position 0, fixed bytes, and bytes at 32,768 tokens; why these."""

    per_token: float
    at_32k: int
    fixed: int = 0
    why: str = ""


def everything(per_token: int, why: str = "") -> Expected:
    """A model without windows and states."""
    return Expected(per_token, per_token * T, 0, why)


# DeepSeek V4 Flash: a window of 128 in all 43 layers; from the third on, by turns, a latent for 4
# tokens with an indexer's key, and a latent for 128.
V4_LATENT = 448 + 64 * 2 + 8

EXPECTED = {
    "bart-bart-base": Expected(
        6 * 2 * 768 * 4, 6 * 2 * 768 * 4 * (T + 1024), 6 * 2 * 768 * 4 * 1024, "self and cross"
    ),
    "deepseek_v2-deepseek-v2-lite": everything(27 * (512 + 64) * 2, "one latent, no heads"),
    "deepseek_v3-DeepSeek-R1": everything(61 * (512 + 64) * 2),
    "deepseek_v3-DeepSeek-V3": everything(61 * (512 + 64) * 2),
    "deepseek_v32-DeepSeek-V3.2": everything(61 * ((512 + 64) * 2 + 128 + 4), "indexer: 132 B"),
    "deepseek_v4-DeepSeek-V4-Flash": Expected(
        43 * V4_LATENT + 21 * (V4_LATENT + 132) / 4 + 20 * V4_LATENT / 128,
        43 * 128 * V4_LATENT + 21 * (T // 4) * (V4_LATENT + 132) + 20 * (T // 128) * V4_LATENT,
    ),
    "exaone4-EXAONE-4.0-32B": Expected(
        64 * 2 * 8 * 128 * 2, (16 * T + 48 * 4096) * 2 * 8 * 128 * 2, why="LLLG: 48 of 64 slide"
    ),
    "gemma2-GaMS-9B-Instruct": Expected(
        42 * 2 * 8 * 256 * 2, 21 * (T + 4096) * 2 * 8 * 256 * 2, why="even layers slide"
    ),
    "gemma4-Gemma-4-31B-IT-NVFP4": Expected(
        10 * 2 * 4 * 512 + 50 * 2 * 16 * 256,
        10 * 2 * 4 * 512 * T + 50 * 2 * 16 * 256 * 1024,
        why="kv_cache_scheme asks for a byte; full layers have 4 heads of 512",
    ),
    "gemma4-gemma-4-26B-A4B": Expected(
        (5 * 2 * 2 * 512 + 25 * 2 * 8 * 256) * 2,
        (5 * 2 * 2 * 512 * T + 25 * 2 * 8 * 256 * 1024) * 2,
        why="full layers have 2 heads of 512",
    ),
    "glm_moe_dsa-GLM-5.2": everything(78 * (512 + 64) * 2 + 21 * 132, "21 indexers listed full"),
    "glm_moe_dsa-GLM-5": everything(78 * ((512 + 64) * 2 + 132)),
    "gpt_oss-gpt-oss-120b": Expected(36 * 2 * 8 * 64 * 2, 18 * (T + 128) * 2 * 8 * 64 * 2),
    "gpt_oss-gpt-oss-20b": Expected(24 * 2 * 8 * 64 * 2, 12 * (T + 128) * 2 * 8 * 64 * 2),
    "kimi_k2-Kimi-K2-Instruct": everything(61 * (512 + 64) * 2),
    "kimi_k25-Kimi-K2.5": everything(61 * (512 + 64) * 2),
    "kimi_k3-Kimi-K3": Expected(
        24 * (512 + 64) * 2,
        24 * (512 + 64) * 2 * T + 69 * (3 * 96 * 128 * 3 * 2 + 96 * 128 * 128 * 4),
        69 * (3 * 96 * 128 * 3 * 2 + 96 * 128 * 128 * 4),
        "24 latent layers; 69 of delta attention: three convolutions in bf16, a state in f32",
    ),
    "lfm2_vl-LFM2.5-VL-1.6B": Expected(
        6 * 2 * 8 * 64 * 2,
        6 * 2 * 8 * 64 * 2 * T + 10 * 2048 * (3 - 1) * 2,
        10 * 2048 * (3 - 1) * 2,
        "10 convolutions of 3 taps over 2048 channels keep 2 inputs",
    ),
    "llama-Meta-Llama-3.1-405B": everything(126 * 2 * 8 * 128 * 2),
    "llama-Meta-Llama-3.1-70B": everything(80 * 2 * 8 * 128 * 2),
    "llama-Meta-Llama-3.1-8B": everything(32 * 2 * 8 * 128 * 2, "128 KiB, as published"),
    "llama-codellama-34b-instruct-hf": everything(48 * 2 * 8 * 128 * 2),
    "llama-llama-2-7b-hf": everything(32 * 2 * 32 * 128 * 2),
    "llama-yi-34b": everything(60 * 2 * 8 * 128 * 2),
    "llama4-Llama-4-Maverick-17B-128E-Instruct": Expected(
        48 * 2 * 8 * 128 * 2, (12 * T + 36 * 8192) * 2 * 8 * 128 * 2, why="3 of 4 see 8,192"
    ),
    "llama4-Llama-4-Scout-17B-16E-Instruct": Expected(
        48 * 2 * 8 * 128 * 2, (12 * T + 36 * 8192) * 2 * 8 * 128 * 2, why="3 of 4 see 8,192"
    ),
    "mimo-MiMo-7B-Base": everything(36 * 2 * 8 * 128 * 2, "use_sliding_window is not set"),
    "mimo_v2_flash-MiMo-V2-Flash": Expected(
        (9 * 4 + 39 * 8) * (192 + 128) * 2,
        (9 * 4 * T + 39 * 8 * 128) * (192 + 128) * 2,
        why="keys of 192, values of 128; sliding layers have 8 heads, full ones 4",
    ),
    "minimax_m2-MiniMax-M2.5": everything(62 * 2 * 8 * 128 * 2),
    "minimax_m3-MiniMax-M3": everything(
        60 * 2 * 4 * 128 * 2 + 57 * 128 * 2, "57 sparse layers keep an index key of 128, no value"
    ),
    "mistral-mistral-nemo-instruct-2407": everything(40 * 2 * 8 * 128 * 2, "not 5120 / 32 = 160"),
    "mixtral-Mixtral-8x22B-v0.1": everything(56 * 2 * 8 * 128 * 2),
    "mixtral-Mixtral-8x7B-v0.1": everything(32 * 2 * 8 * 128 * 2, "sliding_window is null"),
    "mllama-Llama-3.2-90B-Vision-Instruct": Expected(
        80 * 2 * 8 * 128 * 2,
        80 * 2 * 8 * 128 * 2 * T + 20 * 2 * 8 * 128 * 2 * 4 * 1601,
        20 * 2 * 8 * 128 * 2 * 4 * 1601,
        "20 of 100 layers see only the image: 4 tiles of (560 / 14)**2 + 1",
    ),
    "nemotron-nas-Llama-3_3-Nemotron-Super-49B-v1": everything(
        49 * 2 * 8 * 128 * 2, "49 of 80 layers attend, 64 / 8 heads each"
    ),
    "nemotron_h-NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": Expected(
        6 * 2 * 2 * 128 * 2,
        6 * 2 * 2 * 128 * 2 * T + 23 * ((4096 + 2 * 8 * 128) * 3 * 2 + 64 * 64 * 128 * 4),
        23 * ((4096 + 2 * 8 * 128) * 3 * 2 + 64 * 64 * 128 * 4),
        "6 stars and 23 Ms of 52; the inner size is 64 heads of 64",
    ),
    "nemotron_h-NVIDIA-Nemotron-3-Super-120B-A12B-FP8": Expected(
        8 * 2 * 2 * 128 * 2,
        8 * 2 * 2 * 128 * 2 * T + 40 * ((8192 + 2 * 8 * 128) * 3 * 2 + 128 * 64 * 128 * 4),
        40 * ((8192 + 2 * 8 * 128) * 3 * 2 + 128 * 64 * 128 * 4),
    ),
    "nemotron_h-Nemotron-H-56B-Base-8K": Expected(
        10 * 2 * 8 * 128 * 2,
        10 * 2 * 8 * 128 * 2 * T + 54 * ((16384 + 2 * 8 * 256) * 3 * 2 + 256 * 64 * 256 * 4),
        54 * ((16384 + 2 * 8 * 256) * 3 * 2 + 256 * 64 * 256 * 4),
    ),
    "phi3-Phi-3.5-vision-instruct": everything(32 * 2 * 32 * 96 * 2, "a window of the context"),
    "qwen2-qwen2.5-7b-instruct": everything(28 * 2 * 4 * 128 * 2),
    "qwen3-Qwen3-0.6B": everything(28 * 2 * 8 * 128 * 2, "not 1024 / 16 = 64"),
    "qwen3-Qwen3-8B": everything(36 * 2 * 8 * 128 * 2),
    "qwen3_5-Qwen3.5-27B": Expected(
        16 * 2 * 4 * 256 * 2,
        16 * 2 * 4 * 256 * 2 * T + 48 * ((2 * 2048 + 6144) * 3 * 2 + 48 * 128 * 128 * 4),
        48 * ((2 * 2048 + 6144) * 3 * 2 + 48 * 128 * 128 * 4),
        "48 of 64 layers are gated delta: 16 key and 48 value heads of 128",
    ),
    "qwen3_5-Qwen3.5-9B": Expected(
        8 * 2 * 4 * 256 * 2,
        8 * 2 * 4 * 256 * 2 * T + 24 * ((2 * 2048 + 4096) * 3 * 2 + 32 * 128 * 128 * 4),
        24 * ((2 * 2048 + 4096) * 3 * 2 + 32 * 128 * 128 * 4),
    ),
    "qwen3_5_moe-Qwen3.5-122B-A10B": Expected(
        12 * 2 * 2 * 256 * 2,
        12 * 2 * 2 * 256 * 2 * T + 36 * ((2 * 2048 + 8192) * 3 * 2 + 64 * 128 * 128 * 4),
        36 * ((2 * 2048 + 8192) * 3 * 2 + 64 * 128 * 128 * 4),
    ),
    "qwen3_5_moe-Qwen3.5-35B-A3B": Expected(
        10 * 2 * 2 * 256 * 2,
        10 * 2 * 2 * 256 * 2 * T + 30 * ((2 * 2048 + 4096) * 3 * 2 + 32 * 128 * 128 * 4),
        30 * ((2 * 2048 + 4096) * 3 * 2 + 32 * 128 * 128 * 4),
    ),
    "qwen3_5_moe-Qwen3.5-397B-A17B": Expected(
        15 * 2 * 2 * 256 * 2,
        15 * 2 * 2 * 256 * 2 * T + 45 * ((2 * 2048 + 8192) * 3 * 2 + 64 * 128 * 128 * 4),
        45 * ((2 * 2048 + 8192) * 3 * 2 + 64 * 128 * 128 * 4),
    ),
    "qwen3_moe-Qwen3-235B-A22B-FP8": everything(94 * 2 * 4 * 128 * 2, "fp8 weights, bf16 cache"),
    "qwen3_moe-Qwen3-30B-A3B-FP8": everything(48 * 2 * 4 * 128 * 2),
    "qwen3_vl-Qwen3-VL-2B-Instruct": everything(28 * 2 * 8 * 128 * 2),
    "qwen3_vl_moe-Qwen3-VL-235B-A22B-Instruct": everything(94 * 2 * 4 * 128 * 2),
    "step3p7-Step-3.7-Flash": Expected(
        45 * 2 * 8 * 128 * 2, (12 * T + 33 * 512) * 2 * 8 * 128 * 2, why="the first of 4 is full"
    ),
    "t5-t5-small": Expected(
        6 * 2 * 8 * 64 * 4, 6 * 2 * 8 * 64 * 4 * (T + 512), 6 * 2 * 8 * 64 * 4 * 512
    ),
}


@pytest.mark.parametrize("name", published_names())
def test_a_published_configuration_costs_what_its_keys_say(name: str) -> None:
    expected = EXPECTED[name]
    cost = cache_cost(read_shape(published(name)))
    assert cost.bytes_per_token == expected.per_token, expected.why
    assert cost.fixed_bytes == expected.fixed, expected.why
    assert cost.bytes_at(T) == expected.at_32k, expected.why
    assert cost.bytes_at(0) == expected.fixed


@pytest.mark.parametrize(
    ("name", "changes", "context", "gib"),
    [
        ("llama-llama-2-7b-hf", {}, 4096, 2),
        ("llama-Meta-Llama-3.1-8B", {}, 8192, 1),
        ("mistral-7b", {}, 32_768, 4),
        ("mistral-7b", {"sliding_window": 4096}, 32_768, 0.5),
        ("mistral-7b", {"num_key_value_heads": 32}, 32_768, 16),
    ],
)
def test_the_published_anchors_come_out(
    name: str, changes: dict[str, int | None], context: int, gib: float
) -> None:
    config = MISTRAL_7B if name == "mistral-7b" else published(name)
    cost = cache_cost(read_shape({**config, **changes}), kv_dtypes("f16"))
    assert cost.bytes_at(context) == gib * 2**30


MISTRAL_7B = {
    "model_type": "mistral",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32_768,
    "sliding_window": None,
}
