"""Timing for a terminal and for a chart."""

from collections.abc import Sequence
from itertools import groupby

from rich.table import Table

from kvikk.bench.phases import (
    BATCH_PROMPT_TOKENS,
    DECODE_STEPS,
    Phase,
    PhaseRow,
    PhasesReport,
)
from kvikk.bench.tables import plain_table
from kvikk.bench.timing import PATHS, Difference, TimingReport
from kvikk.bench.wording import all_of, counted
from kvikk.plot import Chart, Series

_PHASES: dict[Phase, tuple[str, str]] = {
    "prefill": ("prompt tokens", "Prefill: time to first token by length of the prompt"),
    "context": ("context", "Decode: time a token by context, one sequence"),
    "batch": ("sequences", f"Decode: time a step by batch, {BATCH_PROMPT_TOKENS} tokens of prompt"),
}


def timing_table(report: TimingReport) -> Table:
    """The essay's table: seconds, the speed-up, what one doubling costs, positions computed."""
    table = plain_table(
        *("engine", "new\ntokens", "cached\ns", "vs\nprev.", "uncached\ns", "vs\nprev."),
        *("speed\nup", "cached\npos.", "uncached\npos."),
    )
    for row in report.rows:
        before = report.previous(row)
        cached, uncached = row.cached.median_s, row.uncached.median_s
        table.add_row(
            row.engine,
            f"{row.new_tokens:,}",
            f"{cached:,.3f}",
            "" if before is None else f"{cached / before.cached.median_s:.2f}x",
            f"{uncached:,.3f}",
            "" if before is None else f"{uncached / before.uncached.median_s:.2f}x",
            f"{row.speed_up:.1f}x",
            f"{row.cached.computed_tokens:,}",
            f"{row.uncached.computed_tokens:,}",
        )
    return table


def timing_notes(report: TimingReport) -> list[str]:
    """With what it was measured, and whether all paths said the same."""
    notes = [f"{name}: {description}" for name, description in report.descriptions.items()]
    paths = len(report.descriptions) * len(PATHS)
    lengths = {row.new_tokens for row in report.rows}
    notes.append(
        f"prompt of {counted(report.prompt_tokens, 'token')}, greedy; {_cell(report.repeats)}; "
        "positions are counted by the engines, not computed from a formula"
    )
    if not report.differences:
        notes.append(
            f"token ids are equal: {all_of(paths, 'path')}, all runs, "
            f"{all_of(len(lengths), 'length')}"
        )
    return notes


def difference_lines(differences: Sequence[Difference]) -> list[str]:
    """Where paths part, and how near the decision was; once, however many lengths show it."""
    lines = []
    shown = set()
    for difference in differences:
        place = (difference.other, difference.position)
        if place in shown:
            continue
        shown.add(place)
        one, other = difference.token_ids
        line = (
            f"TOKEN IDS DIFFER at {difference.new_tokens} new tokens: {difference.other} says "
            f"{other} where {difference.one} says {one}, at new token {difference.position + 1}"
        )
        if difference.gap is not None:
            line += f"; transformers puts them {abs(difference.gap):.2g} apart in logits"
        lines.append(line)
    return lines


def timing_charts(report: TimingReport) -> list[Chart]:
    """Seconds by length for every path, and the speed-up."""
    seconds, speed_ups = [], []
    for engine in report.descriptions:
        rows = [row for row in report.rows if row.engine == engine]
        cached = [(row.new_tokens, row.cached.median_s) for row in rows]
        uncached = [(row.new_tokens, row.uncached.median_s) for row in rows]
        seconds += [Series(f"{engine}, cached", cached), Series(f"{engine}, uncached", uncached)]
        speed_ups.append(Series(engine, [(row.new_tokens, row.speed_up) for row in rows]))
    return [
        Chart("Seconds an answer", "new tokens", "seconds", seconds, log_x=True, log_y=True),
        Chart("Uncached over cached", "new tokens", "times", speed_ups, log_x=True),
    ]


def phase_tables(report: PhasesReport) -> list[tuple[str, Table]]:
    """A title and a table a phase, engines below each other."""
    return [(title, _phase_table(report, phase)) for phase, (_, title) in _PHASES.items()]


def phase_notes(report: PhasesReport) -> list[str]:
    """With what it was measured."""
    notes = [f"{name}: {description}" for name, description in report.descriptions.items()]
    notes.append(
        f"{_cell(report.repeats)}; a decode step's time is the mean of {DECODE_STEPS} steps"
    )
    return notes


def _cell(repeats: int) -> str:
    return "a cell is one run" if repeats == 1 else f"a cell is the median of {repeats} runs"


def _phase_table(report: PhasesReport, phase: Phase) -> Table:
    size_name, _ = _PHASES[phase]
    unit = {"prefill": "ms", "context": "ms/token", "batch": "ms/step"}[phase]
    table = plain_table("engine", size_name, unit, "vs previous", "tokens/s", "weights, GB/s")
    rows = sorted(report.of(phase), key=lambda row: row.engine)
    for _, of_engine in groupby(rows, key=lambda row: row.engine):
        before: PhaseRow | None = None
        for row in of_engine:
            table.add_row(
                row.engine,
                f"{row.size:,}",
                f"{1000 * row.seconds:,.2f}",
                "" if before is None else f"{row.seconds / before.seconds:.2f}x",
                f"{row.tokens_per_s:,.0f}",
                f"{row.weight_bytes_per_s / 1e9:.1f}",
            )
            before = row
    return table


def phase_charts(report: PhasesReport) -> list[Chart]:
    """One chart a phase."""
    charts = []
    for phase, (size_name, title) in _PHASES.items():
        rows = report.of(phase)
        lines = [
            Series(
                engine,
                [(row.size, 1000 * row.seconds) for row in rows if row.engine == engine],
            )
            for engine in dict.fromkeys(row.engine for row in rows)
        ]
        if lines:
            charts.append(Chart(title, size_name, "milliseconds", lines, log_x=True, log_y=True))
    return charts
