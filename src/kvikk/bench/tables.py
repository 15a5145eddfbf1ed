"""Tables for a terminal."""

from rich.table import Table

from kvikk.bench.books import RunBooks
from kvikk.bench.load_summary import LoadSummary, Spread
from kvikk.bench.serve import ServeReport
from kvikk.bench.wording import counted


def serve_heading(report: ServeReport) -> str:
    """Whom the figures are about."""
    target = report.target
    return f"{target.model} at {target.base_url} ({target.software})"


def serve_tables(report: ServeReport) -> list[Table]:
    """The run in figures, latencies with percentiles, and turn by turn where there are turns."""
    summary = report.summary
    tables = [_figures(summary), _latencies(summary)]
    if report.books is not None and report.books.by_cause:
        tables.append(_books(report.books))
    if len(summary.turns) > 1:
        tables.append(_turns(summary))
    return tables


def serve_notes(report: ServeReport) -> list[str]:
    """What a reader must know to believe the figures."""
    target, summary = report.target, report.summary
    notes = [
        f"{kind}: {counted(count, 'request')} ({summary.error_messages[kind]})"
        for kind, count in summary.errors.items()
    ]
    if summary.not_sent:
        turns = counted(
            summary.not_sent, "turn behind a failed one was", "turns behind a failed one were"
        )
        notes.append(f"{turns} not sent")
    if not target.ignores_eos:
        notes.append("the server takes no ignore_eos")
    if summary.short_answers:
        answers = counted(summary.short_answers, "answer was", "answers were")
        notes.append(f"{answers} shorter than wanted")
    if not target.lengths.is_measured:
        notes.append("the server tells no usage: prompts were sized by taking a word for a token")
    if summary.counted_by_events:
        notes.append("the server tells no usage in streams: events were counted as output tokens")
    notes.append(
        f"the client took {1000 * summary.client_cpu_s_per_request:.1f} ms of CPU a request, "
        f"{100 * summary.client_cpu_share:.0f} % of one core; seed {report.seed}"
    )
    return notes


def plain_table(*columns: str) -> Table:
    """A table whose first column is words and whose others are figures."""
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    return table


def _figures(summary: LoadSummary) -> Table:
    table = plain_table("", "")
    table.show_header = False
    rows = [
        ("requests", f"{summary.completed:,} of {summary.requests:,} completed"),
        ("duration", f"{summary.duration_s:,.2f} s"),
        ("output tokens", f"{summary.completion_tokens:,}"),
        ("output tokens/s", f"{summary.output_tokens_per_s:,.1f}"),
        ("requests/s", f"{summary.requests_per_s:,.2f}"),
        ("prompt tokens", _count(summary.prompt_tokens)),
        ("  of them reused", _reuse(summary.cached_tokens, summary.prompt_tokens)),
    ]
    for name, value in rows:
        table.add_row(name, value)
    return table


def _latencies(summary: LoadSummary) -> Table:
    table = plain_table("milliseconds", "mean", "p50", "p95", "p99", "largest")
    rows = [("time to first token (TTFT)", summary.ttft_s)]
    if len(summary.turns) > 1:
        rows += [
            ("  first turn", summary.first_turn_ttft_s),
            ("  later turns", summary.later_turns_ttft_s),
        ]
    rows += [
        ("time per output token", summary.tpot_s),
        ("longest wait within an answer", summary.longest_gap_s),
        ("whole request", summary.request_s),
        ("sent after its moment", summary.late_s),
    ]
    for name, figure in rows:
        table.add_row(name, *_milliseconds(figure))
    return table


def _books(books: RunBooks) -> Table:
    """What was reused, what could have been, and where the rest of the prompts' tokens went."""
    table = plain_table("reuse, by the server's books", "tokens", "share")
    prompt_tokens = sum(books.by_cause.values())
    rates = books.rates
    for name, rate in (
        ("achieved", rates.achieved),
        ("attainable by the operator", rates.attainable_by_operator),
        ("attainable by the author", rates.attainable_by_author),
    ):
        table.add_row(name, f"{round(rate * prompt_tokens):,}", f"{100 * rate:.1f}%")
    for cause, tokens in sorted(books.by_cause.items(), key=lambda item: -item[1]):
        table.add_row(f"  {cause.value}", f"{tokens:,}", f"{100 * tokens / prompt_tokens:.1f}%")
    return table


def _turns(summary: LoadSummary) -> Table:
    table = plain_table("turn", "TTFT, ms: mean", "p50", "p95", "prompt", "reused", "failed")
    for turn in summary.turns:
        mean, p50, p95, *_ = _milliseconds(turn.ttft_s)
        table.add_row(
            str(turn.turn),
            mean,
            p50,
            p95,
            _count(turn.prompt_tokens),
            _reuse(turn.cached_tokens, turn.prompt_tokens),
            str(turn.failed),
        )
    return table


def _milliseconds(figure: Spread | None) -> tuple[str, ...]:
    if figure is None:
        return ("-",) * 5
    values = (figure.mean, figure.p50, figure.p95, figure.p99, figure.largest)
    return tuple(f"{1000 * value:,.1f}" for value in values)


def _count(value: int | None) -> str:
    return "not told" if value is None else f"{value:,}"


def _reuse(cached_tokens: int | None, prompt_tokens: int | None) -> str:
    if cached_tokens is None or not prompt_tokens:
        return "not told"
    return f"{cached_tokens:,} ({100 * cached_tokens / prompt_tokens:.0f} %)"
