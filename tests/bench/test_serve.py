"""Workloads against a real server: what we count, it counts too."""

import asyncio
import json
from collections import Counter
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kvikk.bench.load import LoadRun, run_sessions
from kvikk.bench.load_summary import charts, percentile, summarise
from kvikk.bench.serve import ServeOptions, measure
from kvikk.bench.tables import serve_tables
from kvikk.bench.target import Api, Lengths, Target, reach
from kvikk.bench.traces import Trace, read_trace
from kvikk.bench.workloads import Chat, Fixed, Workload, at_rate
from kvikk.cache.ledger.records import Cause
from kvikk.errors import RequestError
from kvikk.text.tokenizer import Tokenizer
from kvikk.text.words import WORDS, text_of
from tests.server.live import LiveServer

COUNTERS = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:prefix_cache_hits_total",
)


def reached(base_url: str, api: Api) -> Target:
    return asyncio.run(reach(base_url, api=api, model=None, api_key=None, seed=1))


def run(
    base_url: str, workload: Workload, api: Api = "completions", concurrency: int | None = 4
) -> LoadRun:
    target = reached(base_url, api)
    sessions = workload.sessions(target.lengths, 7)
    return asyncio.run(run_sessions(target, sessions, concurrency=concurrency))


def test_the_servers_own_counters_agree(server: LiveServer, base_url: str) -> None:
    target = reached(base_url, "chat")
    assert target.ignores_eos
    assert (target.model, target.lengths.tokens_per_word) == ("smollm2", 1.0)
    workload = Chat(
        num_sessions=3, num_turns=3, system_tokens=96, message_tokens=9, output_tokens=5
    )
    before = [server.metric(name) for name in COUNTERS]
    done = asyncio.run(run_sessions(target, workload.sessions(target.lengths, 3), concurrency=3))
    grown = [server.metric(name) - old for name, old in zip(COUNTERS, before, strict=True)]
    summary = summarise(done)
    assert grown == [summary.prompt_tokens, summary.completion_tokens, summary.cached_tokens]
    assert summary.completed == summary.requests == 9
    assert summary.completion_tokens == 9 * 5
    assert {turn.turn: turn.requests for turn in summary.turns} == {1: 3, 2: 3, 3: 3}
    # A later turn finds all but the last blocks of the turn before it.
    assert all(turn.cached_tokens >= 3 * 96 for turn in summary.turns[1:])
    assert next(chart.title for chart in charts(summary, done)) == "Time to first token by turn"


def test_lengths_are_true_to_the_token(base_url: str) -> None:
    for api in ("completions", "chat"):
        done = run(base_url, Fixed(3, prompt_tokens=75, output_tokens=6), api)
        counts = [result.counts for result in done.results]
        assert [(one.prompt_tokens, one.completion_tokens) for one in counts] == [(75, 6)] * 3
        assert [one.cached_tokens < 64 for one in counts] == [True] * 3  # the template at most


def test_times_are_in_order(base_url: str) -> None:
    done = run(base_url, Fixed(4, 20, 8), concurrency=2)
    assert [result.error for result in done.results] == [None] * 4
    for result in done.results:
        assert result.due_s <= result.sent_s < result.first_token_s <= result.last_token_s
        assert result.last_token_s <= done.duration_s
        assert 0 < result.tpot_s < result.last_token_s
        assert result.num_events == 8


def test_what_fails_is_counted_by_kind_and_ends_its_session(base_url: str) -> None:
    too_long = Fixed(2, prompt_tokens=2000, output_tokens=4)
    summary = summarise(run(base_url, too_long))
    assert (summary.requests, summary.completed, summary.errors) == (2, 0, {"HTTP 400": 2})
    assert (
        "1024" in summary.error_messages["HTTP 400"] or "1023" in summary.error_messages["HTTP 400"]
    )
    grows = Chat(num_sessions=2, num_turns=4, system_tokens=0, message_tokens=400, output_tokens=4)
    summary = summarise(run(base_url, grows, "chat"))
    assert summary.completed + sum(summary.errors.values()) + summary.not_sent == 8
    assert summary.errors == {"HTTP 400": 2}
    assert [turn.failed for turn in summary.turns] == [0, 0, 2]
    assert summary.not_sent == 2


def test_a_traces_prompts_share_what_they_shared(base_url: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 40, "input_length": 1300, "output_length": 16, "hash_ids": [1, 2, 9]},
        {"timestamp": 0, "input_length": 1100, "output_length": 32, "hash_ids": [1, 2, 3]},
        {"timestamp": 90, "input_length": 512, "output_length": 8, "hash_ids": [4]},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    trace = Trace(read_trace(path), shrink=8)
    done = run(base_url, trace, concurrency=1)
    counts = [result.counts for result in done.results]
    assert [one.prompt_tokens for one in counts] == [137, 162, 64]
    assert [one.completion_tokens for one in counts] == [4, 2, 1]
    # Two blocks of 64 tokens are four of the server's own.
    assert [one.cached_tokens for one in counts] == [0, 128, 0]


def test_a_trace_arrives_when_it_arrived(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"timestamp": 5000000, "input": "b", "output": "12345678", "session_id": "s"}\n'
        '{"timestamp": 2000000, "input": "a", "output": "", "session_id": "s"}\n'
    )
    sessions = list(Trace(read_trace(path), speed=2).sessions(Lengths(), 0))
    assert [session.arrival_s for session in sessions] == [0, 1.5]
    assert [session.turns[0].text() for session in sessions] == ["a", "b"]
    assert [session.turns[0].output_tokens for session in sessions] == [1, 2]
    with pytest.raises(RequestError, match="--shrink"):
        Trace(read_trace(path), shrink=2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no requests"),
        ("{}", "trace.jsonl:1.*Mooncake"),
        ("\n{", "trace.jsonl:2.*not JSON"),
        ('{"timestamp":0,"input_length":513,"output_length":1,"hash_ids":[1]}', "1 blocks of 512"),
        ('{"timestamp":0,"input_length":-1,"output_length":1,"hash_ids":[1]}', "lengths -1, 1"),
        ('{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":["a"]}', "Mooncake"),
    ],
)
def test_a_trace_that_is_none_names_its_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(RequestError, match=words):
        read_trace(path)


def test_random_arrivals_are_those_of_a_poisson_process() -> None:
    sessions = at_rate(Fixed(4000).sessions(Lengths(), 0), per_s=5, seed=1)
    moments = np.array([session.arrival_s for session in sessions])
    gaps = np.diff(moments, prepend=0)
    assert gaps.mean() == pytest.approx(0.2, rel=0.05)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)
    in_a_second = np.bincount(moments.astype(int))
    assert in_a_second.var() == pytest.approx(in_a_second.mean(), rel=0.15)


def test_an_open_loop_does_not_wait_for_answers(base_url: str) -> None:
    report = measure(
        ServeOptions(base_url, "completions", rate_per_s=200, seed=5), Fixed(6, 20, 120)
    )
    assert report.summary.completed == 6
    sent = [result.sent_s for result in report.run.results]
    assert max(sent) < min(result.last_token_s for result in report.run.results)


def test_the_servers_books_say_what_was_reused_and_what_could_have_been(
    server: LiveServer, base_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    texts = [text_of(70, 3, "known")] * 2 + [f"10:00:07 {text_of(70, 3, 'known')}"]
    lines = [
        {"timestamp": number, "input": text, "output": "yes", "session_id": "s"}
        for number, text in enumerate(texts)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    report = measure(
        ServeOptions(base_url, "completions", concurrency=1, seed=8), Trace(read_trace(path))
    )
    assert report.books is not None
    tokens = report.books.by_cause
    assert sum(tokens.values()) == report.summary.prompt_tokens
    assert tokens[Cause.HIT_DEVICE] == report.summary.cached_tokens == 64
    assert tokens[Cause.MOVED] >= 32
    achieved, operator, author = astuple(report.books.rates)
    assert achieved == operator == 64 / report.summary.prompt_tokens
    assert author == achieved + tokens[Cause.MOVED] / report.summary.prompt_tokens
    assert report.to_json()["books"]["rates"]["attainable_by_author"] == author
    printed = Console(record=True, width=100)
    for table in serve_tables(report):
        printed.print(table)
    assert "attainable by the author" in printed.export_text()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.integers(0, 100))
def test_percentiles_are_numpys(values: list[float], percent: int) -> None:
    expected = np.percentile(values, percent)
    assert percentile(sorted(values), percent) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_every_word_is_a_token(smollm2_tokenizer: Tokenizer, gemma3_tokenizer: Tokenizer) -> None:
    assert not [word for word, times in Counter(WORDS).items() if times > 1]
    for tokenizer in (smollm2_tokenizer, gemma3_tokenizer):
        text = " ".join(WORDS)
        assert len(tokenizer.encode(text, add_bos=False)) == len(WORDS)
    assert text_of(50, 1) == text_of(60, 1)[: len(text_of(50, 1))] != text_of(50, 2)
