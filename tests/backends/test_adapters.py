"""Sequences with adapters: what PEFT computes, and nobody else's."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from kvikk.backends.reference.backend import ReferenceBackend
from kvikk.files.adapters import find_adapter
from kvikk.files.sources import resolve
from kvikk.models.adapter_reader import load_adapter
from kvikk.models.load import load_decoder
from tests.backends import truth
from tests.backends.adapters import save_adapter
from tests.backends.driver import Driver
from tests.models.gguf_files import write_gguf
from tests.models.small_models import GEMMA3, GPT2, LLAMA, random_model

PROMPTS = [list(range(1, 30)), [90, 3, 3, 17], [5]]
NEW_TOKENS = 6

LLAMA_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES: dict[str, tuple[transformers.PreTrainedConfig, dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig(**LLAMA), {"target_modules": LLAMA_MODULES}),
    "llama, rank-stabilised, some modules": (
        transformers.LlamaConfig(**LLAMA),
        {"target_modules": ["q_proj", "down_proj"], "use_rslora": True},
    ),
    "llama, ranks by module": (
        transformers.LlamaConfig(**LLAMA),
        {
            "target_modules": ["k_proj", "v_proj", "up_proj"],
            "rank_pattern": {"v_proj": 2, "layers.0.mlp.up_proj": 7},
            "alpha_pattern": {"self_attn.k_proj": 1.5},
        },
    ),
    "qwen2": (transformers.Qwen2Config(**LLAMA), {"target_modules": LLAMA_MODULES}),
    "gemma3": (transformers.Gemma3TextConfig(**GEMMA3), {"target_modules": LLAMA_MODULES}),
    "granite": (
        transformers.GraniteConfig(
            **LLAMA,
            residual_multiplier=0.4,
            embedding_multiplier=3.0,
            logits_scaling=2.0,
            attention_multiplier=0.2,
        ),
        {"target_modules": LLAMA_MODULES},
    ),
    "phi3, whose matrices are fused": (
        transformers.Phi3Config(**LLAMA, pad_token_id=0),
        {"target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]},
    ),
    "gpt2, whose matrices lie transposed": (
        transformers.GPT2Config(**GPT2),
        {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_adapter_gives_what_peft_gives(name: str, tmp_path: Path) -> None:
    config, options = CASES[name]
    model = random_model(config)
    model.save_pretrained(tmp_path / "model")
    adapted = save_adapter(model, tmp_path / "adapter", **options)
    check_against(adapted, tmp_path / "model", tmp_path / "adapter")


def test_an_adapter_fits_the_same_model_stored_as_gguf(tmp_path: Path) -> None:
    # There the rows of queries and keys lie in another order.
    model = random_model(transformers.LlamaConfig(**LLAMA))
    write_gguf(model, gguf.MODEL_ARCH.LLAMA, tmp_path / "model.gguf")
    adapted = save_adapter(model, tmp_path / "adapter", target_modules=LLAMA_MODULES)
    check_against(adapted, tmp_path / "model.gguf", tmp_path / "adapter")


def check_against(adapted: torch.nn.Module, model: Path, adapter: Path) -> None:
    """Greedy answers and logits of kvikk's reference, beside the base model's own in one batch."""
    decoder = load_decoder(resolve(str(model)))
    driver = Driver(ReferenceBackend(), decoder, capacity_tokens=1024)
    driver.backend.load_adapter(7, load_adapter(find_adapter(str(adapter)), decoder))
    base_answers, base_logits = driver.greedy(PROMPTS, NEW_TOKENS)
    answers, logits = driver.greedy(PROMPTS * 2, NEW_TOKENS, adapters=[7] * 3 + [0] * 3)
    for prompt, answer, ours in zip(PROMPTS, answers, logits, strict=False):
        expected = truth.logits_of_last(adapted, prompt + answer[:-1], NEW_TOKENS)
        assert answer == expected.argmax(axis=-1).tolist()
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-3)
    assert answers[3:] == base_answers
    np.testing.assert_allclose(logits[3:], base_logits, rtol=0, atol=1e-4)
    assert np.abs(logits[:3] - base_logits).max() > 0.1, "the adapter does something"
