"""The lines that engines printed, and the models they are of.

A row's model is read from its published configuration where one is at hand, else from a
configuration made of the row's own keys, in the words of its family.
"""

import json
from dataclasses import dataclass, replace
from typing import Any

from kvikk.files.sources import resolve
from kvikk.shapes.families import read_shape
from kvikk.shapes.shape import LayerCache, LayerKind, ModelShape
from tests.shapes.configurations import DATA, published


@dataclass(frozen=True)
class Row:
    """One row of ``kv_capacity.jsonl``."""

    id: str
    settings: dict[str, Any]
    printed: dict[str, Any]
    keys: dict[str, Any]


def rows() -> dict[str, Row]:
    """All rows by their ids. One has its fields shifted by one, which is put right here."""
    found = {}
    for line in (DATA / "kv_capacity.jsonl").read_text().splitlines():
        row = json.loads(line)
        keys, settings, printed = row["config"], row["settings"], row["printed"]
        if isinstance(row["model"], dict):
            keys, settings, printed = row["model"], row["dtype"], row["settings"]
        found[row["id"]] = Row(row["id"], settings, printed, keys)
    return found


def _decoder(model_type: str, layers: int, heads: int, kv_heads: int, **others: Any) -> ModelShape:
    """From a made configuration with heads of 128 unless told."""
    return read_shape(
        {
            "model_type": model_type,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "hidden_size": heads * 128,
            "head_dim": 128,
            **others,
        }
    )


def _latent(model_type: str, layers: int, rank: int = 512, rope: int = 64) -> ModelShape:
    return _decoder(model_type, layers, 128, 128, kv_lora_rank=rank, qk_rope_head_dim=rope)


def _expanded(layers: int, heads: int) -> ModelShape:
    """DeepSeek's attention as engines keep it that undo the compression: keys of 128 + 64."""
    layer = LayerCache(LayerKind.FULL, heads * (128 + 64), heads * 128, kv_heads=heads)
    return ModelShape("deepseek_v3", (layer,) * layers, 163_840)


def _keys_and_values(layers: int, keys: int, values: int) -> ModelShape:
    return ModelShape("made", (LayerCache(LayerKind.FULL, keys, values),) * layers, 4096)


def without_windows(shape: ModelShape) -> ModelShape:
    """The model in an engine that keeps every token of every layer."""
    layers = (replace(layer, kind=LayerKind.FULL, window_tokens=None) for layer in shape.layers)
    return replace(shape, layers=tuple(layers))


def gemma4(layers: int, full: list[int], shared: int = 0, **sizes: Any) -> ModelShape:
    """Gemma 4 in a size without a published configuration at hand."""
    types = ["full_attention" if i in full else "sliding_attention" for i in range(layers)]
    return read_shape(
        {
            "model_type": "gemma4_text",
            "num_hidden_layers": layers,
            "num_attention_heads": 8,
            "hidden_size": 2048,
            "layer_types": types,
            "num_kv_shared_layers": shared,
            "global_head_dim": 512,
            **sizes,
        }
    )


def models() -> dict[str, ModelShape]:
    """The model of each row."""
    gated_delta_27b = read_shape(published("qwen3_5-Qwen3.5-27B"))
    gemma3_27b = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "hidden_size": 5376,
        "sliding_window": 1024,
    }
    every_sixth = [index for index in range(48) if index % 6 == 5]
    return {
        "ik-r1-mha-512": _expanded(61, 128),
        "ik-dscv2lite-mha": _expanded(27, 16),
        "ik-r1-mla-f16-163840": read_shape(published("deepseek_v3-DeepSeek-R1")),
        "ik-v3-mla-q8-32k": read_shape(published("deepseek_v3-DeepSeek-V3")),
        "ik-dsv25-mla": _latent("deepseek_v2", 60),
        "ik-kimik2-mha": _expanded(61, 64),
        "llama-v3-mlagguf": _keys_and_values(61, 512 + 64, 512),
        "ik-qwen3-235b-mixed": read_shape(published("qwen3_moe-Qwen3-235B-A22B-FP8")),
        "ik-qwen3-30b-a3b": read_shape(published("qwen3_moe-Qwen3-30B-A3B-FP8")),
        "ik-gemma3-27b-swafull-32k": without_windows(read_shape(gemma3_27b)),
        "ik-glm-z1-32b-q8": _decoder("glm4", 61, 48, 2),
        "ik-llama2-13b": _decoder("llama", 40, 40, 40),
        "ik-nemotron-ultra-253b": read_shape(
            {
                "model_type": "nemotron-nas",
                "num_hidden_layers": 162,
                "num_attention_heads": 128,
                "hidden_size": 16_384,
                "block_configs": [{"attention": {"n_heads_in_group": 16}}] * 64
                + [{"attention": {"no_op": True}}] * 98,
            }
        ),
        "ik-llama8b-q51-q50": read_shape(published("llama-Meta-Llama-3.1-8B")),
        "llama-openllama3b": _decoder("llama", 26, 32, 32, head_dim=100),
        "llama-bge-small": _keys_and_values(12, 384, 384),
        "llama-laguna-1m-q4": _decoder(
            "laguna",
            48,
            48,
            8,
            sliding_window=512,
            layer_types=["full_attention", *["sliding_attention"] * 3] * 12,
        ),
        "llama-gemma4-12b-4slots": gemma4(
            48,
            every_sixth,
            num_key_value_heads=8,
            head_dim=256,
            sliding_window=1024,
            attention_k_eq_v=True,
            num_global_key_value_heads=1,
        ),
        "llama-gemma4-12b-32k": gemma4(
            48,
            every_sixth,
            num_key_value_heads=8,
            head_dim=256,
            sliding_window=1024,
            attention_k_eq_v=True,
            num_global_key_value_heads=1,
        ),
        "llama-gemma3-270m-3slots": read_shape(resolve("gemma3-270m").config),
        "llama-qwen36-27b-q8": gated_delta_27b,
        "llama-qwen38-27b-spec2": gated_delta_27b,
        "llama-falconh1-1.5b": _decoder(
            "falcon_h1",
            24,
            8,
            2,
            mamba_d_ssm=3072,
            mamba_d_state=256,
            mamba_n_groups=1,
            mamba_d_conv=4,
        ),
        "llama-qwen25-1.5b-32k": _decoder("qwen2", 28, 12, 2),
        "llama-qwen38-flash-next": read_shape(
            {
                "model_type": "qwen4_exp_text",
                "num_hidden_layers": 48,
                "num_attention_heads": 16,
                "num_key_value_heads": 2,
                "head_dim": 256,
                "hidden_size": 2048,
                "indexer_head_dim": 128,
                "indexer_kv_heads": 1,
                "linear_num_key_heads": 16,
                "linear_num_value_heads": 32,
                "linear_key_head_dim": 128,
                "linear_value_head_dim": 128,
            }
        ),
        "whisper-base": _whisper(6, 512),
        "whisper-medium": _whisper(24, 1024),
        "whisper-base.en-old": _whisper(6, 512),
        "vllm-10517-29k": read_shape(published("llama-Meta-Llama-3.1-8B")),
        "vllm-granite4-micro": _decoder(
            "granitemoehybrid", 40, 40, 8, head_dim=64, layer_types=["attention"] * 40
        ),
        "vllm-kimi-k2-tp8": read_shape(published("kimi_k2-Kimi-K2-Instruct")),
        "vllm-25350-fp8": read_shape(published("qwen3_moe-Qwen3-30B-A3B-FP8")),
        "vllm-16118-llama4": without_windows(
            read_shape(published("llama4-Llama-4-Maverick-17B-128E-Instruct"))
        ),
        "vllm-mistral-small-4": _latent("mistral4", 36, rank=256),
        "vllm-qwen25-14b-awq": _decoder("qwen2", 48, 40, 8),
        "vllm-70b-plus-3b-draft": read_shape(published("llama-Meta-Llama-3.1-70B")),
        "vllm-21348-qwen3-235b": read_shape(published("qwen3_moe-Qwen3-235B-A22B-FP8")),
        "vllm-qwen25-vl-7b": _decoder("qwen2_5_vl", 28, 28, 4),
        "vllm-mpt-7b": read_shape(
            {"model_type": "mpt", "n_layers": 32, "n_heads": 32, "d_model": 4096}
        ),
        "vllm-vicuna-7b": read_shape(published("llama-llama-2-7b-hf")),
        "vllm-blocksize-27b-bf16": gated_delta_27b,
        "vllm-blocksize-35b-a3b": read_shape(published("qwen3_5_moe-Qwen3.5-35B-A3B")),
        "vllm-blocksize-35b-a3b-mtp": read_shape(published("qwen3_5_moe-Qwen3.5-35B-A3B")),
        "vllm-qwen36-27b-mtp1": gated_delta_27b,
        "vllm-qwen35-122b-mtp": read_shape(published("qwen3_5_moe-Qwen3.5-122B-A10B")),
        "vllm-gemma4-e2b": gemma4(
            35,
            [4, 9, 14, 19, 24, 29, 34],
            shared=20,
            num_key_value_heads=1,
            head_dim=256,
            sliding_window=512,
        ),
        "sgl-qwen3-235b": read_shape(published("qwen3_moe-Qwen3-235B-A22B-FP8")),
        "sgl-glm47-flash": _latent("glm4_moe_lite", 47),
        "sgl-dsv3-fp8": read_shape(published("deepseek_v3-DeepSeek-V3")),
        "sgl-nemotron3-nano-tp4": read_shape(
            published("nemotron_h-NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
        ),
        "sgl-qwen35-9b-dflash": read_shape(published("qwen3_5-Qwen3.5-9B")),
        "trt-qwen25-0.5b": _decoder("qwen2", 24, 14, 2, head_dim=64),
        "trt-r1-distill-8b": read_shape(published("llama-Meta-Llama-3.1-8B")),
        "ref-santacoder-mqa": read_shape(
            {
                "model_type": "gpt_bigcode",
                "n_layer": 24,
                "n_head": 16,
                "n_embd": 2048,
                "multi_query": True,
            }
        ),
        "ref-gpt2-mha": read_shape(
            {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768}
        ),
    }


def _whisper(layers: int, width: int) -> ModelShape:
    return read_shape(
        {
            "model_type": "whisper",
            "decoder_layers": layers,
            "decoder_attention_heads": width // 64,
            "d_model": width,
            "max_target_positions": 448,
            "max_source_positions": 1500,
        }
    )
