"""Replay: published hit rates, an independent fleet, every form of trace, and the command."""

import heapq
import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvikk.cache.eviction import EVICTION_POLICIES
from kvikk.cache.eviction.lru import Lru
from kvikk.errors import RequestError
from kvikk.router.policies import POLICIES
from kvikk.router.rates import ArrivalRate
from kvikk.router.replay import oracles
from kvikk.router.replay.reading import read_trace
from kvikk.router.replay.simulation import Rates, simulate
from kvikk.router.replay.study import StudyOptions, study
from kvikk.router.replay.trace import Trace, TracedRequest

DATA = Path(__file__).parent / "data"
CONVERSATION = DATA / "mooncake_conversation_excerpt.jsonl"
AGENT_TEXT = DATA.parents[1] / "data" / "agent_text"


@pytest.fixture(scope="module")
def conversation() -> Trace:
    return read_trace(CONVERSATION)


@pytest.mark.parametrize("name", ["conversation", "synthetic"])
@pytest.mark.parametrize("eviction", ["lru", "fifo"])
def test_hit_rates_are_those_of_a_recount_of_the_file(name: str, eviction: str) -> None:
    """From the file's own fields, victims found by search."""
    path = DATA / f"mooncake_{name}_excerpt.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()][:250]
    trace = read_trace(path)
    trace = Trace(trace.requests[:250], trace.block_tokens)
    for capacity in (40, 300):
        age: dict[int, tuple[int, int]] = {}
        hit = 0
        for turn, row in enumerate(rows):
            ids = row["hash_ids"]
            known = next((n for n, one in enumerate(ids) if one not in age), len(ids))
            hit += min(known * 512, row["input_length"])
            own = ids[:capacity]
            for depth, one in enumerate(own):
                if eviction == "lru" or one not in age:
                    age[one] = (turn, -depth)
            while len(age) > capacity:
                del age[min(age.keys() - set(own), key=age.__getitem__)]
        expected = hit / sum(row["input_length"] for row in rows)
        assert oracles.hit_rate(trace, EVICTION_POLICIES[eviction](capacity)) == expected


def test_a_fleet_is_what_an_independent_model_of_it_says(conversation: Trace) -> None:
    """The formulas of the docs in plain loops, three replicas, multiplier left to the policy's."""
    rows = [json.loads(line) for line in CONVERSATION.read_text().splitlines()]
    replicas, capacity, speed = 3, 400, 20_000.0
    tally = simulate(
        conversation,
        POLICIES["weighted"],
        [Lru(capacity) for _ in range(replicas)],
        Rates(speed, 0.03),
    )
    free = [0.0] * replicas
    used: list[dict[int, tuple[int, int]]] = [{} for _ in range(replicas)]
    arrivals: list[float] = []
    ttft, hit_tokens = [], 0
    for turn, row in enumerate(rows):
        now, ids, length = row["timestamp"] / 1000, row["hash_ids"], row["input_length"]
        arrivals.append(now)
        weight = sum(np.exp((np.array(arrivals) - now) / 60))
        rate = weight / (60 * (1 - np.exp(-max(now - arrivals[0], 1) / 60)))
        hits = []
        for one in used:
            known = next((n for n, block in enumerate(ids) if block not in one), len(ids))
            hits.append(min(known * 512, length))
        waits = [max(0.0, at - now) for at in free]
        multiplier = 1 + (rate / replicas * sum(waits) / replicas) ** 1.5
        costs = [
            wait + multiplier * (length - hit) / speed
            for wait, hit in zip(waits, hits, strict=True)
        ]
        order = [(turn + step) % replicas for step in range(replicas)]
        slot = min(order, key=lambda one: round(costs[one], 9))
        hit_tokens += hits[slot]
        free[slot] = now + waits[slot] + (length - hits[slot]) / speed
        ttft.append(free[slot] - now)
        own = ids[:capacity]
        used[slot].update({block: (turn, -depth) for depth, block in enumerate(own)})
        for block in heapq.nsmallest(
            max(0, len(used[slot]) - capacity), used[slot], key=used[slot].__getitem__
        ):
            del used[slot][block]
    assert tally.hit_tokens == pytest.approx(hit_tokens, rel=2e-3)
    assert np.mean(tally.ttft_s) == pytest.approx(np.mean(ttft), rel=2e-3)
    assert sum(tally.computed_tokens) + tally.hit_tokens == conversation.prompt_tokens


def test_the_default_waits_less_than_every_other_policy(conversation: Trace) -> None:
    found = study(conversation, StudyOptions(replicas=(4,)))
    means = {row.policy: row.ttft_mean_s for row in found.rows}
    assert set(means) == set(POLICIES)
    assert min(means, key=means.__getitem__) == "weighted"


def test_keys_that_say_no_more_than_prompts_do_cost_the_default_little_and_help_the_others(
    conversation: Trace,
) -> None:
    keyed = tuple(
        replace(one, key=hash(one.blocks[:2]).to_bytes(8, "little", signed=True))
        for one in conversation.requests
    )
    options = StudyOptions((4,), policies=("weighted", "round_robin"))
    without, given = (
        {row.policy: row.ttft_mean_s for row in study(one, options).rows}
        for one in (conversation, Trace(keyed, conversation.block_tokens))
    )
    assert given["weighted"] < 1.03 * without["weighted"]
    assert given["round_robin"] < 0.6 * without["round_robin"]


def test_no_policy_reuses_more_than_the_oracles(conversation: Trace) -> None:
    found = study(conversation, StudyOptions(replicas=(1, 4)))
    for bounds in found.bounds:
        for row in found.rows:
            if row.replicas == bounds.replicas:
                assert row.hit_rate <= bounds.perfect_placement + 1e-12
                assert row.hit_rate <= bounds.infinite
                assert row.hit_rate + row.elsewhere_rate <= bounds.infinite
    single = found.bounds[0]
    assert single.one_cache == single.perfect_placement == found.rows[0].hit_rate


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_no_eviction_hits_more_than_the_best(share: float) -> None:
    """Which itself hits no more than a cache that forgets nothing, and that where all fits."""
    for path in (CONVERSATION, DATA / "mooncake_synthetic_excerpt.jsonl", DATA / "coding_agent"):
        trace = read_trace(path)
        capacity = int(share * trace.distinct_blocks)
        best = oracles.best_eviction(trace, capacity, lambda done: None)
        for name, make in EVICTION_POLICIES.items():
            assert 0 < oracles.hit_rate(trace, make(capacity)) <= best, name
        assert best <= oracles.infinite(trace)
        everything = oracles.best_eviction(trace, trace.distinct_blocks, lambda done: None)
        assert everything == oracles.infinite(trace)


def test_the_best_eviction_is_that_of_a_search_through_all() -> None:
    """Of a tiny trace every choice of what to hold after every request is tried."""
    rng = np.random.default_rng(3)
    for _ in range(10):
        paths = [(0,), (0, 1), (0, 1, 2), (0, 3), (4,), (4, 5)]
        prompts = [paths[at] for at in rng.integers(0, len(paths), 7)]
        trace = Trace(
            tuple(
                TracedRequest(float(turn), len(prompt), 0, prompt)
                for turn, prompt in enumerate(prompts)
            ),
            1,
        )
        states: dict[frozenset[object], int] = {frozenset(): 0}
        for prompt in prompts:
            following: dict[frozenset[object], int] = {}
            for held, hits in states.items():
                hit = next((n for n, block in enumerate(prompt) if block not in held), len(prompt))
                there = held | set(prompt)
                for kept in itertools.combinations(there, min(3, len(there))):
                    key = frozenset(kept)
                    following[key] = max(following.get(key, 0), hits + hit)
            states = following
        most = max(states.values())
        assert oracles.best_eviction(trace, 3, lambda done: None) * trace.prompt_tokens == (
            pytest.approx(most)
        )


def test_an_infinite_cache_hits_all_that_was_seen_before(conversation: Trace) -> None:
    seen: set[object] = set()
    tokens = 0
    for request in conversation.requests:
        known = [block in seen for block in request.blocks]
        assert known == sorted(known, reverse=True)  # the file's ids name whole prefixes
        tokens += min(512 * sum(known), request.prompt_tokens)
        seen.update(request.blocks)
    assert oracles.infinite(conversation) == tokens / conversation.prompt_tokens


def test_an_arrival_rate_follows_the_arrivals() -> None:
    rate = ArrivalRate()
    assert rate.arrived(100.0) == pytest.approx(1.0, rel=0.01)  # one within a first second
    for step in range(1, 3000):
        steady = rate.arrived(100 + step / 5)
    assert steady == pytest.approx(5, rel=0.01)
    for step in range(1, 300):
        slower = rate.arrived(700 + step)
    assert slower == pytest.approx(1, rel=0.05)


def test_coding_agent_sessions_share_nothing_and_start_apart() -> None:
    trace = read_trace(DATA / "coding_agent", spread_s=100)
    files = [json.loads(path.read_text()) for path in sorted((DATA / "coding_agent").glob("*"))]
    assert len(trace.requests) == sum(len(file["requests"]) for file in files)
    assert trace.block_tokens == 64
    assert trace.distinct_blocks == sum(
        len({one for request in file["requests"] for one in request["hash_ids"]}) for file in files
    )
    starts = {}
    for request in trace.requests:
        starts.setdefault(request.session, request.arrival_s)
    assert sorted(starts.values()) == [0, 50]


def test_larger_blocks_are_whole_ones_and_hit_less() -> None:
    small = read_trace(DATA / "coding_agent")
    large = read_trace(DATA / "coding_agent", block_tokens=512)
    for one, other in zip(small.requests, large.requests, strict=True):
        assert len(other.blocks) == len(one.blocks) // 8
    assert 0.5 < oracles.infinite(large) < oracles.infinite(small) < 1
    with pytest.raises(RequestError, match="no multiple of the trace's 64"):
        read_trace(DATA / "coding_agent", block_tokens=100)


def test_nested_requests_of_sub_agents_are_requests(tmp_path: Path) -> None:
    turn = {"t": 1.0, "in": 100, "out": 5, "hash_ids": [1, 2]}
    nested = {"t": 2.0, "type": "subagent", "requests": [turn, turn | {"t": 3.0}]}
    file = tmp_path / "one.json"
    file.write_text(json.dumps({"block_size": 64, "requests": [turn, nested]}))
    assert [one.arrival_s for one in read_trace(file).requests] == [1.0, 1.0, 3.0]


def test_texts_are_cut_into_chunks_that_share_what_the_texts_share() -> None:
    trace = read_trace(AGENT_TEXT)
    lines = [
        json.loads(line) for file in sorted(AGENT_TEXT.glob("*.jsonl")) for line in file.open()
    ]
    assert len(trace.requests) == len(lines)
    lines.sort(key=lambda line: line["timestamp"])
    for line, request in zip(lines, trace.requests, strict=True):
        assert len(request.blocks) == len(line["input"].encode()) // 256
    assert oracles.infinite(trace) > 0.5  # agents send their whole history again


def test_logs_of_kvikk_and_request_bodies_are_traces(tmp_path: Path) -> None:
    keys = ["aa", "bb", "cc"]
    log = {"at": 10.5, "prompt_tokens": 100, "block_size": 32, "block_keys": keys}
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text(json.dumps(log) + "\n" + json.dumps(log | {"session": "s"}) + "\n")
    trace = read_trace(ledger)
    assert trace.block_tokens == 32
    assert oracles.infinite(trace) == 96 / 200
    body = {"model": "m", "messages": [{"role": "user", "content": "word " * 200}]}
    bodies = tmp_path / "bodies.jsonl"
    bodies.write_text(2 * (json.dumps({"at_s": 1, "request": body}) + "\n"))
    assert oracles.infinite(read_trace(bodies)) > 0.3


def test_only_what_a_caller_named_is_a_key_and_keeps_a_replay_s_requests_together(
    tmp_path: Path,
) -> None:
    """Logs say so, as the live router would have it; sessions of traces change nothing."""
    text = "A policy for everybody who reads this carefully. " * 40
    body = {"messages": [{"role": "user", "content": text}]}
    log, traces = tmp_path / "log.jsonl", {}
    for name, more in (("plain", {}), ("keyed", {"prompt_cache_key": "k"})):
        lines = [{"at_s": float(at), "request": body | more} for at in range(9)]
        log.write_text("\n".join(map(json.dumps, lines)))
        traces[name] = read_trace(log)
    written = {"at": 0, "prompt_tokens": 64, "block_size": 32, "block_keys": ["a"], "session": "s"}
    log.write_text(
        "\n".join(json.dumps(written | more) for more in ({}, {"key": ""}, {"key": "k"}))
    )
    assert [bool(one.key) for one in read_trace(log).requests] == [False, False, True]
    options = StudyOptions((3,), (10_000,), ("round_robin",), prefill_tokens_per_s=1e6)
    hits = {name: study(trace, options).rows[0].hit_rate for name, trace in traces.items()}
    # The first at each of three finds nothing; with a key only the very first.
    assert hits["keyed"] == oracles.infinite(traces["keyed"])
    assert hits["plain"] == pytest.approx(hits["keyed"] * 6 / 8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense", "is not JSON"),
        ('{"timestamp": 1}', "no request; expected"),
        ("", "no requests in it"),
        (
            '{"timestamp":1,"input_length":0,"output_length":1,"hash_ids":[]}',
            "these are numbers of tokens",
        ),
        (
            '{"timestamp":1,"input_length":9,"output_length":1,"hash_ids":[[]]}',
            "a block's name is a number or a text",
        ),
    ],
)
def test_what_is_no_trace_is_refused_with_its_place(
    tmp_path: Path, content: str, message: str
) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(content)
    with pytest.raises(RequestError, match=message):
        read_trace(file)


def kvikk(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvikk", *map(str, arguments)], capture_output=True, text=True
    )


def test_the_command_prints_rows_and_oracles_and_draws(tmp_path: Path) -> None:
    plot = tmp_path / "hits.svg"
    arguments = ["--replicas", "2", "--policy", "round-robin,weighted", "--eviction", "lru,fifo"]
    capacity = ["--capacity-tokens", "102400,204800", "--plot", plot]
    done = kvikk("replay", CONVERSATION, "--json", *arguments, *capacity)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert len(document["rows"]) == 8
    assert set(document["oracles"]) == {
        "infinite",
        "one_cache",
        "best_eviction",
        "perfect_placement",
    }
    assert {"policy", "eviction", "replicas", "capacity_tokens", "hit_rate"} <= set(
        document["rows"][0]
    )
    assert {"ttft_mean_s", "ttft_p95_s", "imbalance"} <= set(document["rows"][0])
    assert plot.read_text().startswith("<svg")


def test_without_a_policy_the_command_studies_one_cache() -> None:
    done = kvikk("replay", CONVERSATION, "--eviction", "lru,fifo", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert [(row["policy"], row["eviction"], row["replicas"]) for row in rows] == [
        (None, "lru", 1),
        (None, "fifo", 1),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("nowhere.jsonl",),
        (CONVERSATION, "--policy", "best"),
        (CONVERSATION, "--eviction", "magic"),
        (CONVERSATION, "--replicas", "many"),
        (CONVERSATION, "--replicas", "0"),
        (CONVERSATION, "--capacity-tokens", "5"),
        (CONVERSATION, "--load", "0"),
        (CONVERSATION, "--plot", "plot.png"),
    ],
)
def test_bad_usage_is_one_line_and_status_2(arguments: tuple[object, ...]) -> None:
    done = kvikk("replay", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("kvikk: ")
    assert done.stderr.count("\n") == 1
