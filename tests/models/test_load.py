"""Loaders against transformers: small random models of every kind, saved and loaded by both."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from kvikk.backends.reference.backend import ReferenceBackend
from kvikk.errors import ModelError
from kvikk.files.sources import resolve
from kvikk.models.load import load_decoder
from tests.backends.driver import Driver
from tests.backends.truth import logits_of_last
from tests.models.gguf_files import write_gguf
from tests.models.small_models import GEMMA3, GPT2, LLAMA, random_model, randomise

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8, 3, 2, 7]

SPECIAL_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
CONFIGS = {
    "llama": transformers.LlamaConfig(**LLAMA),
    "llama, tied": transformers.LlamaConfig(**{**LLAMA, "tie_word_embeddings": True}),
    "llama, every head its own": transformers.LlamaConfig(**{**LLAMA, "num_key_value_heads": 4}),
    "llama, one shared head": transformers.LlamaConfig(**{**LLAMA, "num_key_value_heads": 1}),
    "llama, wide heads": transformers.LlamaConfig(**LLAMA, head_dim=48),
    "llama 3 scaling": transformers.LlamaConfig(**LLAMA, rope_parameters=LLAMA3_SCALING),
    "linear scaling": transformers.LlamaConfig(
        **LLAMA, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    ),
    "gemma 3": transformers.Gemma3TextConfig(**GEMMA3),
    "gemma 3, untied, listed layers": transformers.Gemma3TextConfig(
        **{**GEMMA3, "num_hidden_layers": 3, "tie_word_embeddings": False},
        layer_types=["full_attention", "sliding_attention", "full_attention"],
    ),
    "gemma 3, capped": transformers.Gemma3TextConfig(**GEMMA3, final_logit_softcapping=3.0),
    "gemma 2": transformers.Gemma2Config(
        **{**GEMMA3, "num_hidden_layers": 3},
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
    ),
    "gpt-2": transformers.GPT2Config(**GPT2),
    "gpt-2, odd widths": transformers.GPT2Config(
        **GPT2, n_inner=104, activation_function="gelu", layer_norm_epsilon=1e-3
    ),
    "llama, biased": transformers.LlamaConfig(**LLAMA, attention_bias=True, mlp_bias=True),
    "mistral": transformers.MistralConfig(**LLAMA, sliding_window=8),
    "mistral, no window": transformers.MistralConfig(**LLAMA, sliding_window=None),
    "qwen 2": transformers.Qwen2Config(**LLAMA),
    "qwen 2, windows": transformers.Qwen2Config(
        **LLAMA, use_sliding_window=True, sliding_window=8, max_window_layers=1
    ),
    "qwen 3": transformers.Qwen3Config(**LLAMA, head_dim=24),
    "qwen 3, biased": transformers.Qwen3Config(**LLAMA, attention_bias=True),
    "phi 3": transformers.Phi3Config(**LLAMA, **SPECIAL_TOKENS, sliding_window=8),
    "phi 4, turned in part": transformers.Phi3Config(
        **LLAMA, **SPECIAL_TOKENS, partial_rotary_factor=0.75
    ),
    "smollm 3": transformers.SmolLM3Config(**{**LLAMA, "num_hidden_layers": 5}, **SPECIAL_TOKENS),
    "smollm 3, windows": transformers.SmolLM3Config(
        **LLAMA,
        **SPECIAL_TOKENS,
        no_rope_layers=[0, 1],
        use_sliding_window=True,
        sliding_window=8,
    ),
    "olmo 2": transformers.Olmo2Config(**LLAMA, **SPECIAL_TOKENS),
    "granite": transformers.GraniteConfig(
        **LLAMA,
        embedding_multiplier=12.0,
        attention_multiplier=0.1,
        residual_multiplier=0.22,
        logits_scaling=8.0,
        rms_norm_eps=1e-3,
    ),
    "mixtral": transformers.MixtralConfig(**LLAMA, num_local_experts=5, num_experts_per_tok=2),
    "qwen 3 with experts": transformers.Qwen3MoeConfig(
        **LLAMA, **EXPERTS, head_dim=24, norm_topk_prob=True
    ),
    "qwen 3 with experts, in some layers": transformers.Qwen3MoeConfig(
        **{**LLAMA, "num_hidden_layers": 4}, **EXPERTS, decoder_sparse_step=2, mlp_only_layers=[3]
    ),
    "gemma 3, stretched": transformers.Gemma3TextConfig(
        **GEMMA3,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
}


def logits_of(model: transformers.PreTrainedModel) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].numpy()


def our_logits(path: Path) -> np.ndarray:
    decoder = load_decoder(resolve(str(path)))
    return Driver(ReferenceBackend(), decoder, capacity_tokens=64).all_logits(TOKENS)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_logits_of_a_saved_model_equal_those_of_transformers(
    config: transformers.PreTrainedConfig, tmp_path: Path
) -> None:
    model = random_model(config)
    model.save_pretrained(tmp_path)
    np.testing.assert_allclose(our_logits(tmp_path), logits_of(model), rtol=0, atol=2e-4)
    decoder = load_decoder(resolve(str(tmp_path)))
    driver = Driver(ReferenceBackend(), decoder, capacity_tokens=64, block_size=16)
    (answer,), _ = driver.greedy([TOKENS], 12)
    expected = logits_of_last(model, TOKENS + answer[:-1], 12)
    assert answer == expected.argmax(axis=-1).tolist()


# Stretched rotations, by the longest prompt that each reaches from a context of 32.
STRETCHED = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama 3": {**LLAMA3_SCALING, "original_max_position_embeddings": 16},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    "yarn, its own ramp and stretch": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 4.0,
        "beta_slow": 0.5,
        "truncate": False,
        "mscale": 0.7,
        "mscale_all_dim": 0.5,
    },
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
}


@pytest.mark.parametrize("parameters", STRETCHED.values(), ids=STRETCHED)
def test_rotations_are_stretched_past_the_original_context(
    parameters: dict[str, Any], tmp_path: Path
) -> None:
    rotation = {"rope_theta": 10000.0, **parameters}
    config = {**LLAMA, "max_position_embeddings": 32}
    if parameters["rope_type"] in ("linear", "llama3"):  # these state the stretched length
        config["max_position_embeddings"] = 128
    model = random_model(transformers.Qwen3Config(**config, rope_parameters=rotation))
    model.save_pretrained(tmp_path)
    decoder = load_decoder(resolve(str(tmp_path)))
    assert decoder.context_tokens >= 128
    tokens = np.random.default_rng(4).integers(0, 96, 128).tolist()
    logits = Driver(ReferenceBackend(), decoder, capacity_tokens=128).all_logits(tokens)
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=5e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_files_in_several_shards_are_read_exactly(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    model = random_model(CONFIGS["llama"]).to(dtype)
    model.save_pretrained(tmp_path, max_shard_size="64KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    expected = logits_of(model.to(torch.float32))
    np.testing.assert_allclose(our_logits(tmp_path), expected, rtol=0, atol=2e-4)


def test_older_configurations_say_the_same(tmp_path: Path) -> None:
    """Before rope_parameters there were rope_theta, rope_scaling and rope_local_base_freq."""
    for name, older in {
        "llama 3 scaling": {"rope_theta": 500000.0, "rope_scaling": LLAMA3_SCALING},
        "gemma 3, stretched": {
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "rope_scaling": {"type": "linear", "factor": 8.0},
            "sliding_window_pattern": 6,
            "layer_types": None,
        },
    }.items():
        model = random_model(CONFIGS[name])
        model.save_pretrained(tmp_path / name)
        path = tmp_path / name / "config.json"
        config = json.loads(path.read_text())
        del config["rope_parameters"]
        path.write_text(json.dumps({**config, **older}))
        np.testing.assert_allclose(our_logits(tmp_path / name), logits_of(model), rtol=0, atol=2e-4)


GGUF = {
    "llama 3 scaling": gguf.MODEL_ARCH.LLAMA,
    "gemma 2": gguf.MODEL_ARCH.GEMMA2,
    "gemma 3": gguf.MODEL_ARCH.GEMMA3,
    "gpt-2": gguf.MODEL_ARCH.GPT2,
    "granite": gguf.MODEL_ARCH.GRANITE,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "olmo 2": gguf.MODEL_ARCH.OLMO2,
    "phi 4, turned in part": gguf.MODEL_ARCH.PHI3,
    "qwen 2": gguf.MODEL_ARCH.QWEN2,
    "qwen 3": gguf.MODEL_ARCH.QWEN3,
    "qwen 3 with experts": gguf.MODEL_ARCH.QWEN3MOE,
    "smollm 3": gguf.MODEL_ARCH.SMOLLM3,
}


@pytest.mark.parametrize(("name", "architecture"), GGUF.items(), ids=GGUF)
def test_a_gguf_file_is_the_same_model(
    name: str, architecture: gguf.MODEL_ARCH, tmp_path: Path
) -> None:
    model = random_model(CONFIGS[name])
    if name.startswith("gemma"):  # the format has no place for another number
        model.config.query_pre_attn_scalar = model.config.head_dim
        for layer in model.model.layers:
            layer.self_attn.scaling = model.config.head_dim**-0.5
    write_gguf(model, architecture, tmp_path / "model.gguf")
    logits = our_logits(tmp_path / "model.gguf")
    np.testing.assert_allclose(logits, logits_of(model), rtol=0, atol=2e-4)


def test_the_language_model_of_one_that_also_sees_is_loaded(tmp_path: Path) -> None:
    config = transformers.Gemma3Config(
        text_config=CONFIGS["gemma 3"].to_dict(),
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        },
        mm_tokens_per_image=4,
    )
    model = randomise(transformers.Gemma3ForConditionalGeneration(config))
    model.save_pretrained(tmp_path)
    np.testing.assert_allclose(our_logits(tmp_path), logits_of(model), rtol=0, atol=2e-4)


@pytest.fixture
def saved_llama(tmp_path: Path) -> Path:
    random_model(CONFIGS["llama"]).save_pretrained(tmp_path)
    return tmp_path


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_tensors(folder: Path, changes: dict[str, torch.Tensor | None]) -> None:
    path = folder / "model.safetensors"
    tensors = {**load_file(path), **changes}
    save_file({name: t for name, t in tensors.items() if t is not None}, path)


def test_a_missing_tensor_is_one_line(saved_llama: Path) -> None:
    change_tensors(saved_llama, {"model.layers.1.mlp.up_proj.weight": None})
    with pytest.raises(ModelError, match=r"lacks the tensor 'model\.layers\.1\.mlp\.up_proj"):
        load_decoder(resolve(str(saved_llama)))


def test_a_missing_embedding_is_one_line(saved_llama: Path) -> None:
    change_tensors(saved_llama, {"model.embed_tokens.weight": None})
    with pytest.raises(ModelError, match=r"lacks the tensor 'model\.embed_tokens"):
        load_decoder(resolve(str(saved_llama)))


@pytest.mark.parametrize("shape", [(), (0, 64), (96,)])
def test_an_embedding_that_is_no_matrix_is_one_line(
    saved_llama: Path, shape: tuple[int, ...]
) -> None:
    change_tensors(saved_llama, {"model.embed_tokens.weight": torch.zeros(shape)})
    with pytest.raises(ModelError, match=r"embed_tokens\.weight' has shape"):
        load_decoder(resolve(str(saved_llama)))


@pytest.mark.parametrize("shape", [(64, 64, 1), (64,), (63, 64)])
def test_a_tensor_of_another_shape_is_one_line(saved_llama: Path, shape: tuple[int, ...]) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    change_tensors(saved_llama, {name: torch.zeros(shape)})
    with pytest.raises(ModelError, match=r"q_proj\.weight' has shape .* promises \(64, 64\)"):
        load_decoder(resolve(str(saved_llama)))


def test_a_tensor_that_would_be_ignored_is_refused(saved_llama: Path) -> None:
    bias = {"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}
    change_tensors(saved_llama, bias)
    with pytest.raises(ModelError, match=r"has the tensor 'model\.layers\.0\.self_attn\.q_proj\.b"):
        load_decoder(resolve(str(saved_llama)))


def test_stored_frequencies_are_no_reason_to_refuse(saved_llama: Path) -> None:
    expected = our_logits(saved_llama)
    change_tensors(saved_llama, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    np.testing.assert_array_equal(our_logits(saved_llama), expected)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hidden_act": "relu"}, "activation 'relu' is not supported"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "type 'longrope' are not supported"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "lacks factor"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "lacks low_freq_factor"),
        ({"rope_parameters": {"rope_theta": "big"}}, "rope_theta is 'big'"),
        ({"partial_rotary_factor": 0.2}, "3 of a head's 16 elements"),
        ({"rope_parameters": None, "rope_scaling": "linear"}, "rope_scaling is not an object"),
        ({"intermediate_size": 97}, r"promises \(97, 64\)"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf"),
        ({"rope_parameters": {"rope_theta": 1e308}}, r"rope_theta is 1e\+308"),
        ({"rope_parameters": {**LLAMA3_SCALING, "high_freq_factor": 1.0}}, "is not below"),
        ({"head_dim": 31}, "31 of a head's 31 elements"),
        ({"model_type": "nonesuch"}, "'nonesuch' cannot be run; those that can: gemma2, "),
        ({"model_type": "mamba"}, "'mamba' cannot be run; those that can: .*, llama, mistral, "),
        ({"model_type": 3}, "names no model_type"),
    ],
)
def test_a_configuration_that_cannot_be_run_is_one_line(
    saved_llama: Path, changes: dict[str, Any], problem: str
) -> None:
    change_config(saved_llama, **changes)
    with pytest.raises(ModelError, match=problem):
        load_decoder(resolve(str(saved_llama)))


@pytest.mark.parametrize(
    ("config", "option"),
    [
        ("gemma 3", {"use_bidirectional_attention": True}),
        ("gpt-2", {"scale_attn_by_inverse_layer_idx": True}),
    ],
)
def test_options_that_are_not_computed_are_refused(
    tmp_path: Path, config: str, option: dict[str, Any]
) -> None:
    random_model(CONFIGS[config]).save_pretrained(tmp_path)
    change_config(tmp_path, **option)
    with pytest.raises(ModelError, match=f"{next(iter(option))} is not supported"):
        load_decoder(resolve(str(tmp_path)))
