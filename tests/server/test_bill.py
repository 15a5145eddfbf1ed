"""``GET /v1/kvikk/bill``: it adds up, agrees with the ledger, and shows a tenant its own alone."""

import json
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from kvikk.server.options import ServerOptions
from tests.server.live import LiveServer, start
from tests.server.tiny import tiny_engine, words, write_tiny_model

SOL = {"input": 4.00e-6, "read": 0.40e-6, "write": 5.00e-6}
OPERATOR = {"Authorization": "Bearer boss"}


@pytest.fixture(scope="module")
def clock(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("clock") / "clock"
    file.write_text("0")
    return file


@pytest.fixture(scope="module")
def server(tmp_path_factory, clock) -> Iterator[LiveServer]:
    folder = write_tiny_model(tmp_path_factory.mktemp("model"))
    # A pool so small that prompts push each other out.
    options = ServerOptions(
        tiny_engine(folder, kv_memory_bytes=2 << 20, max_context_tokens=3000),
        port=0,
        api_keys=("one", "two"),
        operator_key="boss",
        rules="openai:gpt-5.6-sol",
        price_per_hour=3.6,
        clock=clock,
    )
    with start(options) as live:
        yield live


def ask(server: LiveServer, key: str, *texts: str, **fields):
    roles = ("system", "user", "assistant", "user", "assistant", "user")
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    body = {"model": "tiny", "messages": messages, "max_tokens": 2, "ignore_eos": True} | fields
    response = server.post("/v1/chat/completions", body, headers={"Authorization": f"Bearer {key}"})
    assert response.status_code == 200, response.text
    return response


def bill(server: LiveServer, query: str = "", headers=OPERATOR) -> dict:
    response = server.http.get(f"/v1/kvikk/bill{query}", headers=headers)
    assert response.status_code == 200, response.text
    return response.json()


def test_random_traffic_adds_up_to_the_ledger_and_to_what_each_request_was_told(server, clock):
    chance = random.Random(6)
    before = bill(server)["total"]
    told = {"prompt": 0, "read": 0, "written": 0, "completion": 0}
    paid = 0.0
    ahead_s = 0
    for turn in range(40):
        ahead_s += chance.choice([0, 0, 60, 1000, 2000])
        clock.write_text(str(ahead_s))
        texts = [words(("system", chance.randrange(3)), chance.choice([20, 1100]))]
        texts += [
            words(("turn", chance.randrange(2), i), 60) for i in range(chance.choice([1, 3, 5]))
        ]
        stream = chance.random() < 0.3
        fields = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        response = ask(
            server, chance.choice(["one", "two"]), *texts, n=chance.choice([1, 1, 2]), **fields
        )
        header = dict(pair.split("=") for pair in response.headers["x-kvikk-provider"].split("; "))
        read, written, plain = (int(header[name]) for name in ("read", "written", "plain"))
        hits = sum(
            int(pair.split("=")[1])
            for pair in response.headers["x-kvikk-ledger"].split("; ")
            if pair.startswith("hit.")
        )
        assert read // 32 * 32 <= hits, turn
        if not stream:
            usage = response.json()["usage"]
            assert usage["prompt_tokens"] == read + written + plain
            assert usage["prompt_tokens_details"] == {
                "cached_tokens": read,
                "cache_write_tokens": written,
            }
        told["prompt"] += read + written + plain
        told["read"] += read
        told["written"] += written
        paid += read * SOL["read"] + written * SOL["write"] + plain * SOL["input"]
    clock.write_text("0")
    after = bill(server)["total"]
    assert after["requests"] - before["requests"] == 40
    assert told["read"] > 0
    for name in ("prompt", "read", "written"):
        assert after[f"{name}_tokens"] - before[f"{name}_tokens"] == told[name], name
    assert after["prompt_cost"]["usd"] - before["prompt_cost"].get("usd", 0) == pytest.approx(paid)
    ledger = server.http.get("/v1/kvikk/ledger", headers=OPERATOR).json()
    assert after["prompt_tokens"] + after["unanswered"]["prompt_tokens"] == ledger["prompt_tokens"]


def test_groups_add_up_to_the_total_however_they_are_made(server):
    ask(server, "one", words("groups", 1200), "hello")
    ask(server, "two", words("groups", 1200), "hello")
    ask(server, "boss", words("groups", 1200), "hello")
    total = bill(server)["total"]
    counted = ("requests", "prompt_tokens", "read_tokens", "written_tokens", "plain_tokens")
    for by in ("day", "tenant", "key", "model", "day,key", "key,tenant,model,day"):
        told = bill(server, f"?by={by}")
        for name in counted:
            assert sum(group[name] for group in told["groups"]) == total[name], (by, name)
        assert set(by.split(",")) <= told["groups"][0].keys()


def test_a_tenant_sees_its_own_and_nothing_of_the_machine(server):
    ask(server, "one", words("mine", 1200), "hello")
    ask(server, "two", words("theirs", 1300), "hello")
    everything = bill(server, "?by=tenant")
    assert everything["machine"]["up_s"] > 0
    for key in ("one", "two"):
        own = bill(server, "?by=tenant,key", {"Authorization": f"Bearer {key}"})
        assert "machine" not in own
        (group,) = own["groups"]
        (same,) = [one for one in everything["groups"] if one["tenant"] == group["tenant"]]
        assert own["total"]["prompt_tokens"] == same["prompt_tokens"]
        others = [one["tenant"] for one in everything["groups"] if one != same]
        for other in others:
            nothing = bill(server, f"?tenant={other}", {"Authorization": f"Bearer {key}"})
            assert nothing["total"]["requests"] == 0


def test_days_are_those_of_the_clock_and_can_be_chosen(server, clock):
    clock.write_text(str(40 * 86_400))
    ask(server, "one", words("later", 1200), "hello")
    clock.write_text("0")
    days = [group["day"] for group in bill(server, "?by=day")["groups"]]
    later = max(days)
    assert bill(server, f"?from={later}")["total"]["requests"] == 1
    assert bill(server, f"?from={later}&to={later}&by=key")["groups"][0]["requests"] == 1
    before = bill(server, f"?to={min(days)}")["total"]["requests"]
    assert before >= 1
    assert bill(server)["total"]["requests"] > before


def test_the_machines_time_is_shared_out_and_priced(server):
    before = bill(server)
    ask(server, "one", words("machine", 1500), "hello")
    after = bill(server)
    computed_s = after["machine"]["computed_s"] - before["machine"]["computed_s"]
    assert computed_s > 0
    # 3.60 dollars an hour are a thousandth of one a second.
    total = after["total"]
    assert total["machine_usd"] == pytest.approx(total["machine_s"] / 1000)
    assert after["machine"]["computed_s"] == pytest.approx(total["machine_s"], abs=0.01)
    assert after["machine"]["computed_s"] + after["machine"]["idle_s"] == pytest.approx(
        after["machine"]["up_s"], abs=0.01
    )
    # What is read took no time: the same prompt again is cheaper for the machine.
    first_s = total["machine_s"] - before["total"]["machine_s"]
    spent_s = [total["machine_s"]]
    for _ in range(5):  # whatever else the processor had to do during one of them
        ask(server, "one", words("machine", 1500), "hello")
        spent_s.append(bill(server)["total"]["machine_s"])
    assert min(later - sooner for sooner, later in pairwise(spent_s)) < first_s


def test_an_answer_that_nobody_waits_for_is_in_the_bill_like_any_other(server):
    before = bill(server)["total"]
    headers = {"Authorization": "Bearer one"}
    messages = [{"role": "user", "content": words("gone", 1200)}]
    body = {"model": "tiny", "messages": messages, "ignore_eos": True, "stream": True}
    with server.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as stream:
        next(stream.iter_lines())
    server.wait_for(lambda: bill(server)["total"]["requests"] > before["requests"])
    after = bill(server)["total"]
    assert after["prompt_tokens"] - before["prompt_tokens"] > 1200
    assert after["completion_tokens"] > before["completion_tokens"]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("?by=colour", "by: expected a list of day, tenant, key, model, not 'colour'"),
        ("?by=day,", "by: expected"),
        ("?from=yesterday", "from: expected a day such as 2026-11-30, not 'yesterday'"),
        ("?to=2026-13-01", "to: expected a day"),
    ],
)
def test_a_query_that_makes_no_sense_is_told(server, query, says):
    response = server.http.get(f"/v1/kvikk/bill{query}", headers=OPERATOR)
    assert response.status_code == 400
    assert says in response.json()["error"]["message"]


def test_completions_cost_is_unknown_and_says_so(server):
    ask(server, "one", words("unknown", 100), "hello")
    cost = bill(server)["total"]["completion_cost"]
    assert cost["usd"] is None
    assert cost["unknown"] == ["no price of openai:gpt-5.6-sol for output is known"]


def test_the_bill_outlives_the_server_in_the_access_log(tmp_path):
    log = tmp_path / "access.log"
    folder = write_tiny_model(tmp_path)
    options = ServerOptions(tiny_engine(folder), port=0, rules="openai:gpt-5.6", access_log=log)
    with start(options) as live:
        for turn in range(3):
            ask(live, "none", words("kept", 1200), words(turn, 20), stream=turn == 1)
        total = bill(live)["total"]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    answers = [line for line in lines if line["path"] == "/v1/chat/completions"]
    for name in ("prompt_tokens", "read_tokens", "written_tokens", "plain_tokens"):
        assert sum(line[name] for line in answers) == total[name]
    assert total["read_tokens"] > 2000
