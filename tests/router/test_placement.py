"""The placement as the proxy calls it: what it learns, reconciles and accounts for."""

import json
from pathlib import Path

import pytest

from kvikk.errors import RequestError
from kvikk.router.holdings.keys import joined
from kvikk.router.placement.books import CAUSES, Answer, FleetBooks
from kvikk.router.placement.capacity import _of_kvikk, _of_vllm
from kvikk.router.placement.options import EventSource, PlacementOptions, parse_event_source
from kvikk.router.placement.prompts import TextSide, server_salt
from kvikk.router.policies import POLICIES
from kvikk.router.proxy.placement import Outcome, Reported
from kvikk.router.replay.reading import read_trace
from kvikk.wire.kv_events import KvBatch, KvCleared, KvStored, published_salt
from tests.router.placing import LONG, Fleet, asked, chat


def test_a_conversation_goes_on_where_it_began() -> None:
    fleet = Fleet()
    first = fleet.ask(chat(LONG, "hello"))
    assert first.hit_tokens == 0
    for _ in range(5):
        fleet.ask(chat("Another one. " * 100, "hello"))
    second = fleet.ask(chat(LONG, "hello", "hello yourself", "and now?"))
    assert second.replica is first.replica
    assert second.hit_tokens > 400


def test_a_burst_of_siblings_goes_together_although_nobody_has_answered_yet() -> None:
    fleet = Fleet()
    slots = {fleet.send(chat(LONG, f"question {number}"))[1].replica.slot for number in range(6)}
    assert len(slots) == 1


def test_another_salt_has_no_affinity_and_no_hit() -> None:
    for more in ({"salt": b"tenant"}, {"salt": b""}):
        fleet = Fleet()
        fleet.ask(chat(LONG, "hello", cache_salt="one"))
        for body, salts in (
            (chat(LONG, "hello", cache_salt="two"), {}),
            (chat(LONG, "hello"), {}),
            (chat(LONG, "hello", cache_salt="one"), more if more["salt"] else {"salt": b"x"}),
        ):
            assert fleet.send(body, **salts)[0].hit_tokens == [0, 0, 0]
        assert max(fleet.send(chat(LONG, "hello", cache_salt="one"))[0].hit_tokens) > 400


def test_events_win_over_memory_and_salts_of_both_kinds_are_found(text_side: TextSide) -> None:
    source = {"http://replica1": EventSource("tcp://127.0.0.1:1", None)}
    fleet = Fleet(text_side=text_side, events=source)
    tokens = text_side.tokenizer.encode(
        text_side.template.render(chat(LONG, "hello")["messages"]), add_bos=False
    )
    told = fleet.placement.holders[1].told
    count = len(tokens) // 16

    def tell(salt: str, first: int) -> None:
        names = tuple(range(first, first + count))
        extra = ([salt], *[None] * (count - 1)) if salt else ()
        event = KvStored(names, None, tokens[: count * 16], 16, extra_keys=extra)
        told.hear(KvBatch(0.0, (event,)))
        fleet.placement._follow_told()

    tell("", 0)
    assert fleet.send(chat(LONG, "hello"))[0].hit_tokens == [0, count * 16, 0]
    for salt, own, tells in (
        (b"", "pepper", "pepper"),
        (b"", "salt", published_salt(server_salt(b"", "salt"))),
        (b"tenant", "", published_salt(server_salt(b"tenant", ""))),
    ):
        body = chat(LONG, "hello", **({"cache_salt": own} if own else {}))
        assert fleet.send(body, salt=salt)[0].hit_tokens[1] == 0 or not own
        tell(tells, 1000 * (len(own) + len(salt)))
        assert fleet.send(body, salt=salt)[0].hit_tokens[1] == count * 16
    fleet.placement.forgotten(1, "restarted")
    assert max(fleet.send(chat(LONG, "hello", cache_salt="none"))[0].hit_tokens) == 0


def test_a_word_of_the_replica_ends_what_was_guessed_of_it(text_side: TextSide) -> None:
    source = {"http://replica0": EventSource("tcp://127.0.0.1:1", None)}
    fleet = Fleet(count=1, text_side=text_side, events=source)
    holder, body = fleet.placement.holders[0], chat(LONG, "hello")
    fleet.ask(body)
    assert fleet.send(body)[0].hit_tokens[0] > 300
    holder.hear(KvBatch(0.0, (KvStored((1,), None, [5] * 16, 16),)))
    fleet.placement._follow_told()
    assert fleet.send(body)[0].hit_tokens == [0]
    fleet.ask(chat(LONG, "with a tool", tools=[{"type": "function"}]))  # known by content alone
    assert len(holder.learned) > 0
    holder.hear(KvBatch(0.0, (KvCleared(),)))
    assert len(holder.learned) == len(holder.told) == 0


def turns(number: int) -> list[dict]:
    """Three turns of one conversation, all below any family's length."""
    texts = ["Be kind.", f"question {number}", "answer", "next", "answer", "last"]
    return [chat(*texts[:stop]) for stop in (2, 4, 6)]


def test_routers_that_do_not_talk_agree_by_hashing_how_a_conversation_begins() -> None:
    routers = [Fleet(count=4, policy="consistent_hash") for _ in range(3)]
    places = []
    for number in range(40):
        slots = {
            router.ask(body).replica.id for router, body in zip(routers, turns(number), strict=True)
        }
        assert len(slots) == 1
        places.append(slots.pop())
    assert len(set(places)) == 4


def test_routers_that_do_not_talk_agree_by_hearing_the_same_events(text_side: TextSide) -> None:
    source = {f"http://replica{slot}": EventSource("tcp://127.0.0.1:1", None) for slot in range(3)}
    routers = [Fleet(text_side=text_side, events=source) for _ in range(2)]
    for number in range(12):
        body = chat(f"{number} {LONG}", "hello")
        prompt = text_side.template.render(body["messages"])
        tokens = text_side.tokenizer.encode(prompt, add_bos=False)
        count, holder = len(tokens) // 32, number % 3
        names = tuple(range(1000 * number, 1000 * number + count))
        event = KvStored(names, None, tokens[: 32 * count], 32)
        for router in routers:  # one of them sent it there; both hear what came of it
            router.placement.holders[holder].told.hear(KvBatch(0.0, (event,)))
            router.placement._follow_told()
        assert [router.send(body)[1].replica.slot for router in routers] == [holder] * 2


def test_a_replica_that_stopped_or_left_holds_nothing() -> None:
    fleet = Fleet()
    slot = fleet.ask(chat(LONG, "hello")).replica.slot
    fleet.placement.forgotten(slot, "gone")
    assert len(fleet.placement.learned) == 0
    slot = fleet.ask(chat(LONG, "hello")).replica.slot
    fleet.placement.left(slot)
    assert len(fleet.placement.learned) == 0


def test_every_prompt_token_of_the_fleet_has_one_cause() -> None:
    fleet = Fleet()
    for number in range(12):
        fleet.ask(chat(LONG, f"question {number % 4}", "answer", f"next {number}"), cached=None)
    holder = fleet.ask(chat(LONG, "question 1")).replica
    holder.eligible = False
    fleet.ask(chat(LONG, "question 1"))
    holder.eligible = True
    holder.waiting_tokens = 1e7
    fleet.placement.holders[holder.slot].view.waiting_tokens = 1e7
    books = fleet.fleet()
    assert sum(books["by_cause"].values()) == books["prompt_tokens"]
    assert books["by_cause"]["elsewhere_failover"] > 0
    assert set(books["by_cause"]) == set(CAUSES)
    for one in books["replicas"]:
        assert sum(one["by_cause"].values()) <= books["prompt_tokens"]
    rates = books["rates"]
    assert rates["achieved"] <= min(rates["infinite"], rates["one_cache"])
    lines = fleet.placement.metrics().splitlines()
    told = sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("kvikk_router_prompt_tokens_total{")
    )
    assert told == books["prompt_tokens"]


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_sent_before_a_prompt_is_read_goes_where_it_would_have_gone(name: str) -> None:
    fleet = Fleet(4, policy=name)
    for number in range(40):
        fleet.views[number % 3].eligible = number % 5 > 0
        fleet.views[number % 4].waiting_tokens += 1000
        fleet.send(chat(LONG, f"question {number % 7}"))  # which compares
    question = asked(chat(LONG))
    foreseen = fleet.placement.foresee(question, fleet.views, ())
    assert (foreseen is None) is POLICIES[name].looks_at_prompt


def answer(keys: list[int], hit: int = 0, **more) -> Answer:
    names = joined([b"%04d" % key for key in keys])
    return Answer("a", names, 10, more.pop("session", b""), 10 * len(keys), hit, **more)


def test_the_books_say_what_was_evicted_and_what_was_never_seen() -> None:
    books = FleetBooks()
    books.fleet({"a": 2, "b": 2})
    assert books.note(answer([1, 2])) == {"new": 20}
    assert books.note(answer([1, 2, 3])) == {"evicted": 20, "new": 10}
    assert books.note(answer([1, 2, 3], 10, elsewhere=10, elsewhere_because="load")) == {
        "hit": 10,
        "elsewhere_load": 10,
        "evicted": 10,
    }
    assert books.note(answer([1, 2, 3], 0, unknown_elsewhere=15)) == {
        "elsewhere_ignorance": 15,
        "evicted": 15,
    }
    rates = books.rates()
    assert rates["infinite"] == pytest.approx((20 + 30 + 30) / 110)
    assert rates["achieved"] == pytest.approx(10 / 110)


def test_one_cache_and_perfect_placement_forget_what_their_memory_cannot_hold() -> None:
    books = FleetBooks()
    books.fleet({"a": 2, "b": 2})
    for _ in range(10):
        for session in range(3):
            keys = [10 * session, 10 * session + 1]
            books.note(answer(keys, session=b"%d" % session))
    rates = books.rates()
    assert rates["infinite"] == pytest.approx(9 / 10)
    assert rates["one_cache"] == 0  # six blocks in turn through four
    # Two sessions share one replica's two blocks, the third has the other's for itself.
    assert rates["perfect_placement"] == pytest.approx(9 / 30)


def test_books_of_many_answers_at_once_are_those_of_one_after_the_other() -> None:
    soon, now = FleetBooks(), FleetBooks()
    for number in range(150):
        for books in (soon, now):
            if number % 70 == 0:
                books.fleet({"a": 3 + number, "b": 40})
            keys = [number % 7, 100 + number % 40, number]
            one = answer(keys, number % 3 * 10, session=b"%d" % (number % 5))
            (soon.take if books is soon else books.note)(one)
        if number % 41 == 0:  # fewer than are taken at once
            assert soon.answers == now.answers == {"a": number + 1}
            assert (soon.tokens, soon.rates()) == (now.tokens, now.rates())
    assert (soon.total(), soon.prompt_tokens) == (now.total(), 150 * 30)


def test_a_replica_that_never_hits_raises_an_alarm() -> None:
    fleet = Fleet()
    for _ in range(25):
        fleet.ask(chat(LONG, "hello"), cached=0)
    alarms = {one["id"]: one["alarm"] for one in fleet.fleet()["replicas"]}
    assert "never hits" in alarms.values()
    assert 'kvikk_router_index_alarm{replica="replica' in fleet.placement.metrics()


def test_speed_is_measured_where_an_answer_s_first_byte_is_its_first_token() -> None:
    fleet = Fleet(count=1)
    for _ in range(30):
        body = chat("x" * 40_000 + str(fleet.number), "hello", stream=True)
        request, decision = fleet.send(body)
        seconds = (request.prompt_tokens - decision.hit_tokens) / 2500
        outcome = Outcome(200, "", seconds, seconds, None)
        fleet.placement.answered(request, decision, outcome)
    assert fleet.views[0].prefill_tokens_per_s == pytest.approx(2500, rel=0.01)
    request, decision = fleet.send(chat("y" * 40_000, "hello"))
    fleet.placement.answered(request, decision, Outcome(200, "", 9.0, 9.0, None))
    assert fleet.views[0].prefill_tokens_per_s == pytest.approx(2500, rel=0.01)


def test_the_length_of_a_token_is_learnt_from_usage() -> None:
    fleet = Fleet(count=1)
    for number in range(20):
        request, decision = fleet.send(chat(f"{10 + number} " * 3000, "hello"))
        outcome = Outcome(200, "", 0.1, 0.1, Reported(3000, 0, 1))
        fleet.placement.answered(request, decision, outcome)
    request, _ = fleet.send(chat("33 " * 3000, "hello"))
    assert request.prompt_tokens == pytest.approx(3000, rel=0.1)


@pytest.fixture
def decision_log(tmp_path: Path) -> Path:
    file = tmp_path / "decisions.jsonl"
    fleet = Fleet(decision_log=file)
    for number in range(4):
        fleet.ask(chat(LONG, f"question {number % 2}"))
    fleet.placement._log.close()
    return file


def test_the_decision_log_is_a_trace(decision_log: Path) -> None:
    lines = [json.loads(line) for line in decision_log.read_text().splitlines()]
    assert len(lines) == 4
    assert lines[0]["reason"] in ("load", "prefix")
    assert lines[3]["predicted_tokens"] > 400
    assert "question" not in decision_log.read_text()
    trace = read_trace(decision_log)
    assert len(trace.requests) == 4
    assert trace.requests[0].session == trace.requests[2].session != trace.requests[1].session


def test_capacity_is_read_as_kvikk_and_as_vllm_tell_it() -> None:
    groups = [
        {"window_tokens": 512, "total_blocks": 9},
        {"window_tokens": None, "total_blocks": 70},
    ]
    assert _of_kvikk({"block_size": 32, "groups": groups}) == 70 * 32
    assert _of_kvikk({"error": "no"}) is None
    info = 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1234"} 1.0\n'
    assert _of_vllm(f"# HELP x\n{info}") == 16 * 1234
    assert _of_vllm("nothing") is None


def test_the_page_is_files_without_data_and_the_fleet_is_json() -> None:
    placement = Fleet().placement
    for path, media in (("/", "text/html"), ("/page/fleet.js", "text/javascript")):
        assert placement.page(path)[0].startswith(media)
    assert placement.page("/page/../aware.py") is None
    assert json.loads(placement.page("/v1/kvikk/fleet")[1])["policy"] == "weighted"


def test_event_sources_are_read_and_nonsense_is_refused() -> None:
    assert parse_event_source("http://a:1/=tcp://a:5557,tcp://a:5558") == (
        "http://a:1",
        EventSource("tcp://a:5557", "tcp://a:5558"),
    )
    assert parse_event_source("http://a:1=ipc:///x")[1] == EventSource("ipc:///x", None)
    for text in (
        *("http://a:1", "http://a:1=5557", "http://a:1=tcp://a:1,b", "http://a:1=tcp://a"),
        *("*=tcp://*:99999", "*=tcp://*:0", "=tcp://a:1", "**=tcp://a:1", "a=tcp://a:1"),
    ):
        with pytest.raises(RequestError):
            parse_event_source(text)
    for options in ({"policy": "best"}, {"capacity_tokens": 0}):
        with pytest.raises(RequestError):
            PlacementOptions(**options)
