"""Prompts as vectors: which of their tokens are reused, and that the rest changes nothing."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from kvikk.backends.reference.backend import ReferenceBackend
from kvikk.cache.ledger.records import Cause
from kvikk.engine.engine import Engine
from kvikk.engine.requests import Generation, Pooling, Request
from kvikk.errors import RequestError
from kvikk.files.sources import resolve
from kvikk.models.load import load_decoder
from tests.backends.driver import Driver
from tests.engine import driver
from tests.engine.exact_backend import embedding
from tests.models.small_models import LLAMA, random_model

PROMPT = tuple(range(1, 30))


def a_request(name: str, pooling: Pooling | None, prompt: tuple[int, ...] = PROMPT) -> Request:
    return Request(name, prompt, Generation(max_tokens=1), pooling=pooling)


@pytest.mark.parametrize("step_tokens", [8, 16])
def test_vectors_are_the_same_however_the_prompt_is_cut(step_tokens: int) -> None:
    engine, _ = driver.make_engine(step_tokens=step_tokens, windows=(None, 7), num_blocks=(40, 40))
    got = driver.run(engine, [a_request("a", "last"), a_request("b", "mean")])
    for name, pooling in (("a", "last"), ("b", "mean")):
        expected = embedding(PROMPT, pooling, (None, 7)).astype(np.float32)
        np.testing.assert_array_equal(got[name].embedding, expected)
        assert got[name].token_ids == []
        assert got[name].finish_reason == "stop"


def test_vectors_are_transformers_hidden_states(tmp_path: Path) -> None:
    model = random_model(transformers.LlamaConfig(**LLAMA))
    model.save_pretrained(tmp_path)
    decoder = load_decoder(resolve(str(tmp_path)))
    driver_of = Driver(ReferenceBackend(), decoder, capacity_tokens=256, max_batch_tokens=64)
    engine = Engine(
        driver_of.backend,
        driver_of.plan,
        model_digest=decoder.content_digest,
        vocabulary_size=decoder.vocabulary_size,
        step_tokens=7,
        max_running=4,
    )
    wanted = {}
    for length in (1, 11, 40):
        prompt = tuple(range(3, 3 + length))
        with torch.no_grad():
            states = model.model(torch.tensor([prompt])).last_hidden_state[0].numpy()
        for pooling, expected in (("last", states[-1]), ("mean", states.mean(axis=0))):
            name = f"{pooling} {length}"
            wanted[name] = expected
            engine.add(a_request(name, pooling, prompt))  # type: ignore[arg-type]
    for name, got in driver.run(engine).items():
        np.testing.assert_allclose(got.embedding, wanted.pop(name), rtol=0, atol=1e-3)
    assert not wanted


def test_the_last_token_reuses_what_is_cached_and_the_mean_computes_it() -> None:
    engine, backend = driver.make_engine()
    assert engine.books is not None
    driver.run(engine, [Request("chat", PROMPT, Generation(max_tokens=3))])
    for pooling, computed, causes in (
        ("last", 1, [Cause.HIT_DEVICE, Cause.TAIL]),
        ("mean", 29, [Cause.TAIL]),
        ("last", 1, [Cause.HIT_DEVICE, Cause.TAIL]),
    ):
        before = backend.computed_tokens
        name = f"{pooling}{before}"
        got = driver.run(engine, [a_request(name, pooling)])[name]  # type: ignore[arg-type]
        assert backend.computed_tokens - before == computed
        account = engine.books.accounts.find(name)
        assert account is not None
        assert [span.cause for span in account.ledger.spans] == causes
        assert account.ledger.num_tokens == 29
        assert got.last is not None
        assert got.last.usage.cached_tokens == 29 - computed
        assert got.last.usage.completion_tokens == 0


def test_what_a_mean_computes_others_reuse() -> None:
    engine, _ = driver.make_engine()
    driver.run(engine, [a_request("a", "mean")])
    got = driver.run(engine, [Request("b", PROMPT, Generation(max_tokens=1))])["b"]
    assert got.last is not None
    assert got.last.usage.cached_tokens == 28


def test_a_prompt_may_fill_the_context_where_nothing_comes_after_it() -> None:
    engine, _ = driver.make_engine(max_context_tokens=16)
    longest = tuple(range(16))
    got = driver.run(engine, [a_request("a", "last", longest)])["a"]
    np.testing.assert_array_equal(
        got.embedding, embedding(longest, "last", (None,)).astype(np.float32)
    )
    with pytest.raises(RequestError, match="has 17 tokens; the limit is 16"):
        engine.add(a_request("b", "last", (*longest, 1)))


def test_a_prompt_as_a_vector_is_no_conversation() -> None:
    engine, _ = driver.make_engine()
    driver.run(engine, [a_request("a", "last")])
    assert engine.sessions.find("a", "") is None
