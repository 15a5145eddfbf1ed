"""Adapters in the engine: never a shared block, and unloaded only behind their last request."""

import pytest

from kvikk.cache.ledger.records import Cause
from kvikk.engine.engine import Engine
from kvikk.engine.requests import Generation, Request
from kvikk.errors import RequestError
from tests.engine import driver
from tests.engine.exact_backend import ExactBackend, adapter_value, an_adapter, answer

PROMPT = tuple(range(1, 14))
NAMES = ("", "red", "blue")


def an_engine() -> tuple[Engine, ExactBackend]:
    engine, backend = driver.make_engine()
    for name in NAMES[1:]:
        engine.adapters.load(name, an_adapter(name))
    return engine, backend


def a_request(name: str, adapter: str, **more: int) -> Request:
    return Request(name, PROMPT, Generation(max_tokens=8, **more), adapter=adapter)


def test_two_adapters_and_the_base_in_one_batch_share_no_block_and_answer_as_alone() -> None:
    engine, _ = an_engine()
    names = [name for name in NAMES for _ in range(2)]
    for index, name in enumerate(names):
        engine.add(a_request(f"{name}{index}", name))
    answers: dict[str, driver.Answer] = {}
    shared = 0
    while engine.has_work:
        running = [engine.find(f"{name}{index}") for index, name in enumerate(names)]
        blocks: dict[str, set[int]] = {name: set() for name in NAMES}
        for name, sequence in zip(names, running, strict=True):
            if sequence is not None and sequence.is_running:
                held = set(engine.cache.block_table(sequence.number, 0))
                shared += len(blocks[name] & held)
                blocks[name] |= held
        assert sum(map(len, blocks.values())) == len(set().union(*blocks.values()))
        driver.step(engine, answers)
    assert shared, "those with the same adapter share"
    for index, name in enumerate(names):
        alone = answer(
            PROMPT,
            Generation(max_tokens=8),
            (None,),
            64,
            adapter=adapter_value(an_adapter(name).content_digest) if name else 0,
        )
        assert answers[f"{name}{index}"].token_ids == alone[0]
    assert len({tuple(got.token_ids) for got in answers.values()}) == 3


def test_the_ledger_says_that_another_adapter_is_the_reason() -> None:
    engine, _ = an_engine()
    assert engine.books is not None
    told = {}
    for name in ("", "red", "red", "", "blue"):
        request = a_request(f"{name}{len(told)}", name)
        driver.run(engine, [request])
        account = engine.books.accounts.find(request.id)
        assert account is not None
        told[request.id] = [(span.cause, span.detail.part) for span in account.ledger.spans]
    assert [cause for cause, _ in told["0"]] == [Cause.NEW, Cause.TAIL]
    assert told["red1"][0] == (Cause.CHANGED, "adapter")
    assert told["red2"][0][0] is Cause.HIT_DEVICE
    assert told["3"][0][0] is Cause.HIT_DEVICE
    assert told["blue4"][0] == (Cause.CHANGED, "adapter")


def test_two_names_of_one_content_share() -> None:
    engine, _ = an_engine()
    engine.adapters.load("crimson", an_adapter("red"))
    first = driver.run(engine, [a_request("a", "red")])["a"]
    second = driver.run(engine, [a_request("b", "crimson")])["b"]
    assert second.token_ids == first.token_ids
    assert second.last is not None
    assert second.last.usage.cached_tokens == 12


def test_unloading_lets_those_finish_who_have_it_and_refuses_others() -> None:
    engine, backend = an_engine()
    engine.add(a_request("a", "red", choices=2))
    answers: dict[str, driver.Answer] = {}
    driver.step(engine, answers)
    assert engine.adapters.unload("red") == 2
    with pytest.raises(RequestError, match="no adapter 'red' is loaded"):
        engine.add(a_request("b", "red"))
    # Its name is free, its number is not: the first one still runs.
    again = engine.adapters.load("red", an_adapter("green"))
    assert set(backend.adapters) == {1, 2, again.number}
    while engine.has_work:
        driver.step(engine, answers)
    expected = answer(
        PROMPT,
        Generation(max_tokens=8),
        (None,),
        64,
        adapter=adapter_value(an_adapter("red").content_digest),
    )
    assert answers["a"].token_ids == expected[0]
    assert set(backend.adapters) == {2, again.number}


def test_names_that_cannot_be_are_refused() -> None:
    engine, _ = an_engine()
    for name, problem in (
        ("red", "already"),
        ("", "no name"),
        ("a\nb", "no name"),
        ("x" * 201, "no name"),
    ):
        with pytest.raises(RequestError, match=problem):
            engine.adapters.load(name, an_adapter("green"))
    with pytest.raises(RequestError, match="no adapter 'green'"):
        engine.adapters.unload("green")
    for number in range(62):
        engine.adapters.load(f"more {number}", an_adapter("green"))
    with pytest.raises(RequestError, match="64 adapters"):
        engine.adapters.load("one more", an_adapter("green"))


def test_a_conversation_that_sleeps_wakes_up_with_its_adapter() -> None:
    from kvikk.engine.sleeping import wake_request

    engine, _ = an_engine()
    driver.run(engine, [a_request("a", "red")])
    driver.run(engine, [a_request("b", "")])
    session = engine.sessions.find("a", "")
    assert session is not None
    assert session.request_ids == ["a"], "another adapter's turn is no turn of it"
    woken = wake_request(engine, session, "w")
    assert woken.adapter == "red"
    got = driver.run(engine, [woken])["w"]
    assert got.last is not None
    assert got.last.usage.cached_tokens > 0
