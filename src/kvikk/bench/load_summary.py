"""A run's figures: what a table, a JSON document and a chart are made of."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvikk.bench.answers import Result
from kvikk.bench.load import LoadRun
from kvikk.bench.wording import counted
from kvikk.plot import Chart, Series

_PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Spread:
    """A figure's mean, percentiles and largest value; seconds. ``count`` values went into it."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    largest: float


@dataclass(frozen=True)
class TurnSummary:
    """All sessions' requests of one turn, counted from 1; token sums None where not told."""

    turn: int
    requests: int
    failed: int
    ttft_s: Spread | None
    prompt_tokens: int | None
    cached_tokens: int | None


@dataclass(frozen=True)
class LoadSummary:
    """One run in figures. Token sums are the server's own counts, None where it tells none.

    Speeds are over the run's whole duration. ``counted_by_events``: answers' tokens are numbers of
    events, the nearest there is. ``short_answers`` have fewer than were wanted. ``late_s`` is how
    far behind its moment a request was sent.
    """

    requests: int
    completed: int
    errors: dict[str, int]
    error_messages: dict[str, str]
    not_sent: int
    duration_s: float
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int
    counted_by_events: bool
    short_answers: int
    requests_per_s: float
    output_tokens_per_s: float
    ttft_s: Spread | None
    first_turn_ttft_s: Spread | None
    later_turns_ttft_s: Spread | None
    tpot_s: Spread | None
    longest_gap_s: Spread | None
    request_s: Spread | None
    late_s: Spread | None
    turns: tuple[TurnSummary, ...]
    client_cpu_s_per_request: float
    client_cpu_share: float

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON would have it."""
        return asdict(self)


def summarise(run: LoadRun) -> LoadSummary:
    """The figures of a run."""
    done = [result for result in run.results if result.error is None]
    failed = [result for result in run.results if result.error is not None]
    num_turns = max((result.turn for result in run.results), default=-1) + 1
    completion_tokens = sum(result.completion_tokens for result in done)
    return LoadSummary(
        requests=len(run.results),
        completed=len(done),
        errors=dict(Counter(result.error or "" for result in failed).most_common()),
        error_messages={result.error or "": result.message or "" for result in reversed(failed)},
        not_sent=run.not_sent,
        duration_s=run.duration_s,
        prompt_tokens=_prompt_tokens(done),
        cached_tokens=_cached_tokens(done),
        completion_tokens=completion_tokens,
        counted_by_events=any(result.counts is None for result in done),
        short_answers=sum(result.completion_tokens < result.wanted_tokens for result in done),
        requests_per_s=len(done) / max(run.duration_s, 1e-9),
        output_tokens_per_s=completion_tokens / max(run.duration_s, 1e-9),
        ttft_s=spread(result.ttft_s for result in done),
        first_turn_ttft_s=spread(result.ttft_s for result in done if result.turn == 0),
        later_turns_ttft_s=spread(result.ttft_s for result in done if result.turn > 0),
        tpot_s=spread(result.tpot_s for result in done),
        longest_gap_s=spread(result.longest_gap_s for result in done if result.num_events > 1),
        request_s=spread(
            result.last_token_s - result.sent_s
            for result in done
            if result.last_token_s is not None
        ),
        late_s=spread(result.sent_s - result.due_s for result in run.results),
        turns=tuple(
            _turn_summary(turn, [result for result in run.results if result.turn == turn])
            for turn in range(num_turns)
        ),
        client_cpu_s_per_request=run.client_cpu_s / max(len(run.results), 1),
        client_cpu_share=run.client_cpu_s / max(run.duration_s, 1e-9),
    )


def spread(values: Iterable[float | None]) -> Spread | None:
    """Mean and percentiles of the values that are there; None if there are none."""
    numbers = sorted(value for value in values if value is not None)
    if not numbers:
        return None
    p50, p95, p99 = (percentile(numbers, percent) for percent in _PERCENTILES)
    return Spread(len(numbers), sum(numbers) / len(numbers), p50, p95, p99, numbers[-1])


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Between the two nearest of ``ordered`` values, in proportion."""
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def charts(summary: LoadSummary, run: LoadRun) -> list[Chart]:
    """Time to first token turn by turn, where there are turns, and how latencies are spread.

    None where no request was completed.
    """
    drawn = []
    per_turn = [(turn.turn, turn.ttft_s) for turn in summary.turns if turn.ttft_s is not None]
    if len(per_turn) > 1:
        lines = [
            Series("mean", [(turn, figure.mean) for turn, figure in per_turn]),
            Series("p95", [(turn, figure.p95) for turn, figure in per_turn]),
        ]
        drawn.append(Chart("Time to first token by turn", "turn", "seconds", lines))
    done = [result for result in run.results if result.error is None]
    for title, values in (
        ("Time to first token", [result.ttft_s for result in done]),
        ("Time per output token", [result.tpot_s for result in done]),
    ):
        numbers = sorted(value for value in values if value is not None)
        if numbers:
            points = [(percent, percentile(numbers, percent)) for percent in range(0, 101, 5)]
            line = Series(counted(len(numbers), "request"), points)
            drawn.append(Chart(title, "percentile", "seconds", [line]))
    return drawn


def _turn_summary(turn: int, results: Sequence[Result]) -> TurnSummary:
    done = [result for result in results if result.error is None]
    return TurnSummary(
        turn + 1,
        len(results),
        len(results) - len(done),
        spread(result.ttft_s for result in done),
        _prompt_tokens(done),
        _cached_tokens(done),
    )


def _prompt_tokens(results: Sequence[Result]) -> int | None:
    counts = [result.counts for result in results if result.counts is not None]
    return sum(count.prompt_tokens for count in counts) if counts else None


def _cached_tokens(results: Sequence[Result]) -> int | None:
    told = [
        result.counts.cached_tokens
        for result in results
        if result.counts is not None and result.counts.cached_tokens is not None
    ]
    return sum(told) if told else None
