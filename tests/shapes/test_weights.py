"""Parameters counted from configurations, against published numbers and transformers' models."""

from typing import Any

import pytest
import torch
import transformers

from kvikk.errors import ModelError
from kvikk.files.sources import resolve
from kvikk.shapes.weights import model_weights, weight_bytes, weight_elements
from tests.shapes.configurations import published

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("bart-bart-base", 139_420_416 + (51_201 - 50_265) * 768),  # that file's own vocabulary
        ("deepseek_v2-deepseek-v2-lite", 15_706_484_224),
        ("deepseek_v3-DeepSeek-V3", 671_026_419_200),
        ("gemma2-GaMS-9B-Instruct", 9_241_705_984),
        ("gpt_oss-gpt-oss-120b", 116_829_156_672),
        ("gpt_oss-gpt-oss-20b", 20_914_757_184),
        ("llama-Meta-Llama-3.1-405B", 405_853_388_800),
        ("llama-Meta-Llama-3.1-70B", 70_553_706_496),
        ("llama-Meta-Llama-3.1-8B", 8_030_261_248),
        ("llama-llama-2-7b-hf", 6_738_415_616),
        ("mistral-mistral-nemo-instruct-2407", 12_247_782_400),
        ("mixtral-Mixtral-8x22B-v0.1", 140_620_634_112),
        ("mixtral-Mixtral-8x7B-v0.1", 46_702_792_704),
        ("qwen2-qwen2.5-7b-instruct", 7_615_616_512),
        ("qwen3-Qwen3-0.6B", 596_049_920),
        ("qwen3-Qwen3-8B", 8_190_735_360),
        ("qwen3_moe-Qwen3-235B-A22B-FP8", 235_093_634_560),
        ("qwen3_moe-Qwen3-30B-A3B-FP8", 30_532_122_624),
        ("t5-t5-small", 60_506_624),
    ],
)
def test_published_parameter_counts_come_out_to_the_last_one(name: str, parameters: int) -> None:
    assert weight_elements(model_weights(published(name))) == parameters


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("deepseek_v4-DeepSeek-V4-Flash", 284),
        ("exaone4-EXAONE-4.0-32B", 32.0),
        ("glm_moe_dsa-GLM-5", 744),
        ("kimi_k2-Kimi-K2-Instruct", 1026),
        ("llama4-Llama-4-Maverick-17B-128E-Instruct", 400.7),
        ("llama4-Llama-4-Scout-17B-16E-Instruct", 107.8),
        ("minimax_m2-MiniMax-M2.5", 228.7),
        ("mimo_v2_flash-MiMo-V2-Flash", 309),
        ("nemotron-nas-Llama-3_3-Nemotron-Super-49B-v1", 49.9),
        ("nemotron_h-NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 31.6),
        ("nemotron_h-NVIDIA-Nemotron-3-Super-120B-A12B-FP8", 120.7),
    ],
)
def test_published_sizes_in_billions_come_out(name: str, billions: float) -> None:
    assert weight_elements(model_weights(published(name))) / 1e9 == pytest.approx(
        billions, rel=2e-3
    )


@pytest.mark.parametrize("alias", ["smollm2", "gemma3-270m"])
def test_a_files_own_tensors_have_as_many_elements(alias: str) -> None:
    source = resolve(alias)
    in_file = sum(tensor.num_elements for tensor in source.tensors.values())
    assert weight_elements(model_weights(source.config)) == in_file


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("gpt_oss-gpt-oss-120b", 60.8),  # its checkpoint, in GiB
        ("gpt_oss-gpt-oss-20b", 12.8),
        ("llama-Meta-Llama-3.1-8B", 8_030_261_248 * 2 / GIB),
        ("qwen3_moe-Qwen3-30B-A3B-FP8", 29.0),
    ],
)
def test_bytes_are_those_of_the_published_files(name: str, gib: float) -> None:
    assert weight_bytes(published(name)) / GIB == pytest.approx(gib, abs=0.05)


LINEAR = 32 * (4096 * (4096 + 2 * 1024 + 4096) + 3 * 4096 * 14_336)
OTHERS = 8_030_261_248 - LINEAR


@pytest.mark.parametrize(
    ("quantization", "bytes_per_element"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1 + 4 / 16_384),
        ({"quant_method": "fp8"}, 1),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 0.5 + 2.5 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 1),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.5 + 2.5 / 128),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.5 + 4 / 64),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 1),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.5 + 1 / 16),
        ({"quant_method": "mxfp4"}, 0.5 + 1 / 32),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 4, "group_size": 32, "type": "int"}}
                },
            },
            0.5 + 2 / 32,
        ),
    ],
)
def test_llama_8b_under_each_way_of_quantising(
    quantization: dict[str, Any], bytes_per_element: float
) -> None:
    config = {**published("llama-Meta-Llama-3.1-8B"), "quantization_config": quantization}
    expected = LINEAR * bytes_per_element + OTHERS * 2
    assert weight_bytes(config) == pytest.approx(expected, abs=1)


@pytest.mark.parametrize(
    ("kept", "layers"),
    [
        (["re:.*self_attn.*"], 32),
        (["model.layers.0.self_attn"], 1),
        (["model.layers.1*.self_attn*"], 11),
    ],
)
def test_modules_that_are_not_quantised_keep_their_type(kept: list[str], layers: int) -> None:
    quantization = {"quant_method": "fp8", "modules_to_not_convert": kept}
    config = {**published("llama-Meta-Llama-3.1-8B"), "quantization_config": quantization}
    attention = layers * 4096 * (4096 + 2 * 1024 + 4096)
    assert weight_bytes(config) == LINEAR + attention + OTHERS * 2


def test_an_unknown_way_of_quantising_is_one_line() -> None:
    config = {
        **published("llama-Meta-Llama-3.1-8B"),
        "quantization_config": {"quant_method": "secret"},
    }
    with pytest.raises(ModelError, match="quantised by 'secret' cannot be sized; known: awq"):
        weight_bytes(config)


SMALL: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}

# Families whose models transformers builds here without memory, each with what differs.
BUILT: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "gemma": {},
    "gemma2": {},
    "gemma3_text": {},
    "phi3": {},
    "olmo2": {},
    "granite": {},
    "smollm3": {},
    "starcoder2": {},
    "cohere2": {},
    "gpt2": {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 128},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 8, "moe_intermediate_size": 32},
    "gpt_oss": {"num_local_experts": 4},
    "deepseek_v3": {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8}
    | {"qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 8, "moe_intermediate_size": 32}
    | {"first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "topk_method": "noaux_tc"},
    "qwen3_next": {"num_experts": 8, "moe_intermediate_size": 32}
    | {"shared_expert_intermediate_size": 32, "linear_num_key_heads": 2}
    | {"linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16},
    "mamba": {},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1},
    "lfm2": {"block_auto_adjust_ff_dim": False, "full_attn_idxs": [1, 3]},
    "t5": {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 3, "num_heads": 4},
    "bart": {"d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 96}
    | {"decoder_ffn_dim": 80, "encoder_attention_heads": 4, "decoder_attention_heads": 4},
    "whisper": {"d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 96}
    | {"decoder_ffn_dim": 80, "encoder_attention_heads": 4, "decoder_attention_heads": 4},
}


@pytest.mark.parametrize("family", BUILT)
def test_a_model_that_transformers_builds_has_as_many_parameters(family: str) -> None:
    kind = transformers.CONFIG_MAPPING[family]
    known = {name: value for name, value in SMALL.items() if name in kind().to_dict()}
    config = kind(**{**known, **BUILT[family], "pad_token_id": 0})
    sequence = family in ("t5", "bart", "whisper")
    builder = (
        transformers.AutoModelForSpeechSeq2Seq
        if family == "whisper"
        else transformers.AutoModelForSeq2SeqLM
        if sequence
        else transformers.AutoModelForCausalLM
    )
    with torch.device("meta"):
        model = builder.from_config(config)
    # The correction of a router's scores is stored with the weights, but not trained.
    corrections = (buffer for name, buffer in model.named_buffers() if "correction_bias" in name)
    built = sum(tensor.numel() for tensor in (*model.parameters(), *corrections))
    ours = weight_elements(model_weights({**config.to_dict(), **BUILT[family]}))
    assert ours == built
