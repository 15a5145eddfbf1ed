"""Load or compute: what is measured decides, and the ledger says which it was."""

import pytest

from kvikk.cache.ledger.records import Cause, Span
from kvikk.engine.engine import Engine
from tests.engine import driver, tiered

PROMPT = list(range(1, 34))  # 8 blocks of 4, and a token
# Steps of fewer tokens than this say nothing about speed: what is known here is what tests say.
STEP_TOKENS = 8


def engine_that_knows(
    *, tokens_per_s: float, latency_s: float, bytes_per_s: float
) -> tuple[Engine, list[int]]:
    """An engine whose pool has lost a prompt to its host tier, and its answer."""
    engine = tiered.make_engine([tiered.host()], step_tokens=STEP_TOKENS, num_blocks=(64,))
    first = driver.run(engine, [driver.request("first", PROMPT, 2)])["first"]
    for group, key, block in engine.cache.idle(next(iter(engine.sessions)).keys):
        engine.tiering.hand_down([(group, key, block)])
        engine.cache.let_go([(group, key, block)])
    assert engine.tiering.drain(120)
    engine.tiering.speed.tokens_per_s.feed(tokens_per_s)
    (speed,) = engine.tiering._lower.speeds
    speed.latency_s.feed(latency_s)
    speed.bytes_per_s.feed(bytes_per_s)
    return engine, first.token_ids


def told(engine: Engine, expected: list[int]) -> tuple[Span, ...]:
    again = driver.run(engine, [driver.request("again", PROMPT, 2)])["again"]
    assert again.token_ids == expected
    spans = engine.books.accounts.find("again").ledger.spans
    engine.close()
    return spans


def test_a_tier_faster_than_computing_is_loaded_from() -> None:
    engine, expected = engine_that_knows(tokens_per_s=1, latency_s=1e-6, bytes_per_s=1e9)
    spans = told(engine, expected)
    assert [(span.cause, span.num_tokens) for span in spans] == [
        (Cause.HIT_HOST, 32),
        (Cause.TAIL, 1),
    ]
    assert spans[0].detail.tier is None


def test_a_tier_slower_than_computing_is_passed_over_and_named() -> None:
    # 8 blocks of 32 bytes: four minutes to load, half a minute to compute.
    engine, expected = engine_that_knows(tokens_per_s=1, latency_s=1e-6, bytes_per_s=1)
    spans = told(engine, expected)
    assert [span.cause for span in spans] == [Cause.EVICTED, Cause.TAIL]
    assert [(span.num_tokens, span.detail.tier) for span in spans[:-1]] == [(32, "host")]
    story = engine.books.teller(None).tell(engine.books.accounts.find("again"))
    assert "are in the host tier, and computing them took less time" in story.findings[0].text


def test_a_tier_whose_answer_takes_longer_than_computing_is_not_even_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, expected = engine_that_knows(tokens_per_s=1e3, latency_s=5, bytes_per_s=1e9)
    (tier,) = engine.tiering._lower.tiers
    asked: list[int] = []
    contains = tier.contains
    monkeypatch.setattr(tier, "contains", lambda keys: asked.append(len(keys)) or contains(keys))
    spans = told(engine, expected)
    assert asked == []
    assert [span.cause for span in spans] == [Cause.EXPIRED, Cause.TAIL]
    assert spans[0].detail.part == "sleep"


def test_a_tier_that_was_slow_is_asked_again_as_soon_as_it_answers_others_quickly() -> None:
    engine, expected = engine_that_knows(tokens_per_s=1e3, latency_s=5, bytes_per_s=1e9)
    for number in range(40):  # requests that want nothing from it, and tell it what they used
        driver.run(engine, [driver.request(f"other {number}", [50, 51, 52, 53, number], 2)])
        assert engine.tiering.drain(120)
    spans = told(engine, expected)
    assert [span.cause for span in spans] == [Cause.HIT_HOST, Cause.TAIL]
