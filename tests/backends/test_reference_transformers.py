"""The reference backend and transformers say the same, token for token, on the same weights."""

from dataclasses import dataclass

import numpy as np
import pytest
import transformers
from numpy.typing import NDArray

from kvikk.backends.reference.backend import ReferenceBackend
from kvikk.files.sources import resolve
from kvikk.models.load import load_decoder
from kvikk.text.tokenizer import load_tokenizer
from tests.backends import truth
from tests.backends.driver import Driver
from tests.backends.prompts import VARIED, exact_prompt

NEW_TOKENS = 64

# The long prompt takes its time where other work shares the cores.
pytestmark = pytest.mark.timeout(1200)

CONFIGS = {
    "smollm2": transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=float(np.float32(1e-5)),
        rope_theta=100000.0,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    ),
    "gemma3-270m": transformers.Gemma3TextConfig(
        vocab_size=262144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        max_position_embeddings=32768,
        rms_norm_eps=float(np.float32(1e-6)),
        sliding_window=512,
        bos_token_id=2,
        eos_token_id=1,
        pad_token_id=0,
    ),
}


@dataclass(frozen=True)
class Comparison:
    """Greedy answers of the reference backend, and transformers' model to hold against them."""

    prompts: list[list[int]]
    answers: list[list[int]]
    logits: NDArray[np.float32]  # [prompts, NEW_TOKENS, vocabulary]
    model: transformers.PreTrainedModel


@pytest.fixture(scope="module", params=["smollm2", "gemma3-270m"])
def comparison(request: pytest.FixtureRequest) -> Comparison:
    source = resolve(request.param)
    tokenizer = load_tokenizer(source)
    prompts = [tokenizer.encode(text) for text in VARIED]
    prompts += [exact_prompt(tokenizer, 1), exact_prompt(tokenizer, 3000)]
    if request.param == "gemma3-270m":
        # The long prompt has left the window of 512 long ago; this one does while decoding.
        prompts.append(exact_prompt(tokenizer, 480))
    driver = Driver(ReferenceBackend(), load_decoder(source), capacity_tokens=8192)
    answers, logits = driver.greedy(prompts, NEW_TOKENS)
    model = truth.load_gguf(source.path, CONFIGS[request.param])
    return Comparison(prompts, answers, logits, model)


def test_greedy_answers_and_logits_equal_transformers(comparison: Comparison) -> None:
    assert len(comparison.prompts) >= 20
    for prompt, answer, logits in zip(
        comparison.prompts, comparison.answers, comparison.logits, strict=True
    ):
        # Given everything but the last token, each token of the answer must be the likeliest next.
        expected = truth.logits_of_last(comparison.model, prompt + answer[:-1], NEW_TOKENS)
        assert answer == expected.argmax(axis=-1).tolist()
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-3)


def test_transformers_own_greedy_loop_gives_the_same_answer(comparison: Comparison) -> None:
    expected = truth.generate(comparison.model, comparison.prompts[0], NEW_TOKENS)
    assert comparison.answers[0] == expected
