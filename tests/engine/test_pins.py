"""Pins stay whatever comes, until somebody could not run beside them."""

import logging

import pytest

from kvikk.cache.ledger.records import Cause
from kvikk.engine.engine import Engine
from kvikk.engine.sleeping import pin
from tests.engine import driver

SYSTEM = list(range(1, 10))  # 2 blocks of 4, and a token
LIMIT = 12  # blocks


def pinned_engine() -> Engine:
    engine, _ = driver.make_engine(num_blocks=(LIMIT,), block_size=4, max_context_tokens=48)
    driver.run(engine, [driver.request("system", SYSTEM, 2)])
    pin(engine, next(iter(engine.sessions)), None)
    return engine


def test_what_fits_beside_a_pin_leaves_it_and_what_it_keeps(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = pinned_engine()
    with caplog.at_level(logging.WARNING):
        for number in range(5):
            prompt = [10 + number] * (4 * (LIMIT - 2) - 2)
            driver.run(engine, [driver.request(f"flood {number}", prompt, 2)])
    assert not caplog.records
    assert len(engine.cache.pins) == 1
    # What more memory would do is counted as if there were no pin, and the story says so.
    driver.run(engine, [driver.request("evicted", [10] * (4 * (LIMIT - 2) - 2), 2)])
    story = engine.books.teller(None).tell(engine.books.accounts.find("evicted"))
    told = next(one.text for one in story.findings if one.cause is Cause.EVICTED)
    assert told.endswith("more blocks would have kept them (tenants' shares and pins left out)")
    again = driver.run(engine, [driver.request("again", SYSTEM, 2)])["again"]
    assert again.last.usage.cached_tokens == 8


def test_the_oldest_request_gets_a_pins_blocks_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = pinned_engine()
    prompt = [40] * (4 * (LIMIT - 1))
    with caplog.at_level(logging.WARNING):
        answer = driver.run(engine, [driver.request("large", prompt, 3)])["large"]
    alone, _ = driver.make_engine(num_blocks=(LIMIT,), block_size=4, max_context_tokens=48)
    expected = driver.run(alone, [driver.request("large", prompt, 3)])["large"]
    assert (answer.token_ids, answer.finish_reason) == (expected.token_ids, "length")
    assert engine.cache.pins == ()
    assert [record.getMessage() for record in caplog.records] == [
        "pin 1 (8 tokens) is given up: a request could not run beside it"
    ]
    assert driver.live_blocks(engine) == 0
