"""Gemma 3, whose layers mostly see the last 512 tokens: what is held, lost and found again."""

import json
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from kvikk import LLM
from kvikk.backends.base import Batch
from kvikk.cache.ledger.records import Cause
from kvikk.engine.accounts import Account
from kvikk.engine.engine import Engine
from kvikk.engine.requests import Generation, Request
from tests.engine import driver

MIB = 2**20
BLOCK, WINDOW = 32, 512
RULES = "Answer from the handbook below, and from nowhere else. " * 50
HARBOUR = "The keeper counted the ships that passed in the night. " * 45
MOUNTAINS = "Above the village, snow falls without a sound on roofs and roads. " * 45


@pytest.fixture(scope="module")
def gemma() -> LLM:
    return LLM("gemma3-270m", kv_memory_bytes=32 * MIB, max_running=4, max_context_tokens=2400)


@pytest.fixture
def engine(gemma: LLM) -> Iterator[Engine]:
    gemma.loaded.engine.reset_cache()
    yield gemma.loaded.engine
    assert driver.live_blocks(gemma.loaded.engine) == 0


def ask(llm: LLM, name: str, text: str) -> tuple[list[int], Account]:
    """An answer, and the ledger of its prompt."""
    engine = llm.loaded.engine
    prompt = llm.loaded.tokenizer.encode(f"{text}\nQuestion: What is it like there?\nAnswer:")
    request = Request(name, tuple(prompt), Generation(max_tokens=12))
    answer = driver.run(engine, [request])[name]
    account = engine.books.accounts.find(name)
    assert account is not None
    assert account.ledger.hit_tokens == answer.last.usage.cached_tokens
    return answer.token_ids, account


def findings(engine: Engine, account: Account) -> list[tuple[Cause, str, str | None]]:
    story = engine.books.teller(None).tell(account)
    return [(finding.cause, finding.text, finding.mend) for finding in story.findings]


def test_without_its_window_a_prefix_is_computed_from_the_latest_point_that_can_serve(
    gemma: LLM, engine: Engine
) -> None:
    first, account = ask(gemma, "first", RULES + HARBOUR)
    keys = next(iter(engine.sessions)).keys
    num_blocks = (account.ledger.num_tokens - 1) // BLOCK
    rules = len(gemma.loaded.tokenizer.encode(RULES)) // BLOCK * BLOCK
    windows = [group.window_tokens for group in engine.stats().groups]
    assert sorted(windows, key=str) == [WINDOW, None]
    for number in range(3):  # others work by the same rules
        _, other = ask(gemma, f"other {number}", RULES + str(number) + MOUNTAINS)
        assert other.ledger.hit_tokens >= rules * (number > 0)
    held = dict(zip(windows, engine.cache.held(keys), strict=True))
    assert held[None] >= set(keys[:num_blocks]), "the full group has all of it"
    reach = -(-(WINDOW - 1) // BLOCK)
    assert not held[WINDOW] >= set(keys[num_blocks - reach : num_blocks])

    again, account = ask(gemma, "again", RULES + HARBOUR)
    assert again == first
    assert len(set(first)) > 4
    assert rules <= account.ledger.hit_tokens < num_blocks * BLOCK
    lost = [span for span in account.ledger.spans if span.cause is Cause.EVICTED]
    assert {windows[span.detail.group] for span in lost if span.detail.group is not None} == {
        WINDOW
    }
    told = [
        (text, mend) for cause, text, mend in findings(engine, account) if cause is Cause.EVICTED
    ]
    assert all("evicted from the window group of 512" in text for text, _ in told)
    assert "the full group kept them" in told[0][0]
    assert "raise --kv-memory by" in (told[0][1] or "")


def test_what_the_full_group_has_lost_is_said_to_be_lost_there() -> None:
    engine, _ = driver.make_engine(windows=(8, None), num_blocks=(30, 12), block_size=4)
    prompts = {"first": range(1, 26), "other": [9] * 30, "again": range(1, 26)}
    for name, prompt in prompts.items():
        driver.run(engine, [driver.request(name, prompt, 2)])
    account = engine.books.accounts.find("again")
    lost = [span for span in account.ledger.spans if span.cause is Cause.EVICTED]
    assert lost
    assert {span.detail.group for span in lost} == {1}
    told = [text for cause, text, _ in findings(engine, account) if cause is Cause.EVICTED]
    assert all("were evicted from the full group" in text for text in told)


def test_a_long_conversation_holds_what_kvikk_size_says(
    gemma: LLM, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = 2200
    command = [sys.executable, "-m", "kvikk", "size", "gemma3-270m", "--engine", "kvikk"]
    command += ["--context", str(context), "--json"]
    said = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    backend, forward = engine._backend, engine._backend.forward
    block_bytes = [len(backend.read(group, [0])) for group in range(len(engine.stats().groups))]

    def held_bytes() -> NDArray[np.int64]:
        """A group."""
        found = engine.find("long")
        if found is None or not found.is_running:
            return np.zeros(len(block_bytes), np.int64)
        return np.array(engine.cache.sole_blocks(found.number)) * block_bytes

    in_steps = []

    def counted(batch: Batch) -> NDArray[np.float32]:
        in_steps.append(held_bytes())
        return forward(batch)

    monkeypatch.setattr(backend, "forward", counted)
    prompt = tuple((gemma.loaded.tokenizer.encode(MOUNTAINS) * 4)[: context - 8])
    # Beside an answer that takes a token of each step, so that steps begin anywhere in a block.
    engine.add(Request("beside", prompt[:3], Generation(max_tokens=30, ignore_eos=True)))
    engine.step()
    engine.add(Request("long", prompt, Generation(max_tokens=8, ignore_eos=True)))
    between = []
    while engine.find("long") is not None:
        between.append(held_bytes())
        engine.step()
    engine.abort("beside")
    engine.step()
    # What is reserved is the most that each group holds in a step, to the byte.
    assert np.max(in_steps, axis=0).sum() == said["reserved_bytes"]
    # Between steps it is what is there on paper, but for what whole blocks round up.
    held, on_paper = np.max(between, axis=0).sum(), said["bytes_at_context"]
    assert on_paper <= held < on_paper + sum(block_bytes)
