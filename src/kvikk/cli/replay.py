"""``kvikk replay``: what a trace would hit under other policies, replica counts and memory."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvikk.cli import options, report
from kvikk.cli.columns import columns
from kvikk.errors import RequestError

if TYPE_CHECKING:
    from kvikk.plot import Chart
    from kvikk.router.replay.study import Bounds, Row, Study

_MOST_LINES = 4
_HEADS = ("policy", "eviction", "hit", "TTFT mean", "p95", "max/mean", "elsewhere")


def replay(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE",
            help="A file or folder: Mooncake's form, coding-agent sessions, ledger and decision "
            "logs, agents' texts or request logs.",
        ),
    ],
    replicas: Annotated[str, typer.Option(metavar="N,…", help="Replicas to try.")] = "1",
    capacity_tokens: Annotated[
        str | None,
        typer.Option(
            metavar="N,…", help="Tokens of all caches together; default: a tenth of the trace."
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…", help="Routing policies; default: all; one replica needs none."
        ),
    ] = None,
    eviction: Annotated[str, typer.Option(metavar="NAME,…", help="Eviction policies.")] = "lru",
    block_size: Annotated[
        int | None, typer.Option(help="Tokens a block: a multiple of the trace's own.")
    ] = None,
    load: Annotated[
        float, typer.Option(help="Replicas are so fast that the trace is this share of their work.")
    ] = 0.9,
    prefill_rate: Annotated[
        float | None, typer.Option(help="Prompt tokens per second and replica, instead of --load.")
    ] = None,
    decode_ms: Annotated[float, typer.Option(help="Milliseconds per output token.")] = 30.0,
    spread: Annotated[
        float, typer.Option(metavar="SECONDS", help="Begin a folder's sessions within this time.")
    ] = 7200.0,
    as_json: options.Json = False,
    plot: options.Plot = None,
) -> None:
    """Replay a trace through the router's policies and the caches' bookkeeping."""
    from kvikk.bench.progress import MeasuringBar
    from kvikk.plot import check_plot_path, write_svg
    from kvikk.router.replay.reading import read_trace, trace_files
    from kvikk.router.replay.study import StudyOptions, num_runs, study

    if plot is not None:
        check_plot_path(plot)
    chosen = StudyOptions(
        _numbers("--replicas", replicas),
        () if capacity_tokens is None else _numbers("--capacity-tokens", capacity_tokens),
        () if policy is None else tuple(_names(policy)),
        tuple(_names(eviction)),
        load,
        prefill_rate,
        decode_ms / 1000,
    )
    with MeasuringBar() as bar:
        advance = bar.begin(
            sum(file.stat().st_size for file in trace_files(trace) if file.exists())
        )
        traced = read_trace(trace, spread, block_size, lambda done: advance(done, "reading"))
        advance = bar.begin(len(traced.requests) * num_runs(chosen))
        found = study(traced, chosen, lambda done: advance(done, "requests"))
    if plot is not None:
        write_svg(plot, _charts(found))
    if as_json:
        print(json.dumps(found.to_json()))
        return
    print(_tables(found))
    speeds = found.prefill_tokens_per_s.items()
    report.note(
        f"{found.requests:,} requests, {found.prompt_tokens:,} prompt tokens, "
        f"{found.distinct_blocks:,} distinct blocks of {found.block_tokens}, "
        f"{found.duration_s:,.0f} s; a replica computes "
        + ", ".join(f"{speed:,.0f} tokens/s ({count})" for count, speed in speeds)
    )


def _tables(found: "Study") -> str:
    """A table for each fleet, its bounds below its rows."""
    parts = []
    for bounds in found.bounds:
        lines: list[tuple[str, ...]] = [_HEADS]
        lines += [
            _cells(row)
            for row in found.rows
            if (row.replicas, row.capacity_tokens) == (bounds.replicas, bounds.capacity_tokens)
        ]
        for name, hit, mean_s, p95_s in (
            ("perfect placement", bounds.perfect_placement, None, None),
            (
                "one cache",
                bounds.one_cache,
                bounds.one_cache_ttft_mean_s,
                bounds.one_cache_ttft_p95_s,
            ),
            ("best eviction", bounds.best_eviction, None, None),
            ("infinite", bounds.infinite, bounds.infinite_ttft_mean_s, bounds.infinite_ttft_p95_s),
        ):
            times = ["" if time is None else f"{time:.2f} s" for time in (mean_s, p95_s)]
            lines.append((f"oracle: {name}", "", f"{hit:.4f}", *times, "", ""))
        count = "1 replica" if bounds.replicas == 1 else f"{bounds.replicas} replicas"
        heading = f"{count}, {bounds.capacity_tokens:,} tokens in all"
        parts.append(f"{heading}\n{columns(lines, right=range(2, 7), indent='  ')}")
    return "\n\n".join(parts)


def _cells(row: "Row") -> tuple[str, ...]:
    return (
        row.policy or "-",
        row.eviction,
        f"{row.hit_rate:.4f}",
        f"{row.ttft_mean_s:.2f} s",
        f"{row.ttft_p95_s:.2f} s",
        f"{row.imbalance:.2f}",
        f"{row.elsewhere_rate:.4f}",
    )


def _charts(found: "Study") -> list["Chart"]:
    """Hit rate and mean wait over whichever has more than one value: memory, else replicas."""
    from kvikk.plot import Chart, Series

    over_memory = len({row.capacity_tokens for row in found.rows}) > 1
    lines: dict[str, list[Row]] = {}
    for row in found.rows:
        lines.setdefault(_series_name(row, over_memory), []).append(row)
    # The quickest few: more lines than a legend holds say nothing.
    quickest = sorted(lines, key=lambda name: sum(row.ttft_mean_s for row in lines[name]))
    shown = {name: lines[name] for name in quickest[:_MOST_LINES]}

    def across(row: "Row | Bounds") -> float:
        return row.capacity_tokens if over_memory else row.replicas

    hits = [
        Series(name, sorted((across(row), row.hit_rate) for row in rows))
        for name, rows in shown.items()
    ]
    bounds = sorted({(across(one), one.infinite) for one in found.bounds})
    waits = [
        Series(name, sorted((across(row), row.ttft_mean_s) for row in rows))
        for name, rows in shown.items()
    ]
    label = "tokens of all caches" if over_memory else "replicas"
    return [
        Chart(
            "Hit rate",
            label,
            "share of prompt tokens",
            [*hits, Series("infinite", bounds)],
            log_x=True,
        ),
        Chart("Mean time to first token", label, "seconds", waits, log_x=True),
    ]


def _series_name(row: "Row", over_memory: bool) -> str:
    """What stays the same along a line."""
    fleet = f"{row.replicas} replicas" if over_memory and row.replicas > 1 else ""
    parts = [row.policy or "", row.eviction, fleet]
    return " ".join(part for part in parts if part)


def _names(text: str) -> list[str]:
    return [name.strip().replace("-", "_").lower() for name in text.split(",") if name.strip()]


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part.replace("_", "")) for part in text.split(",") if part.strip())
    except ValueError:
        numbers = ()
    if not numbers:
        raise RequestError(f"{option} {text!r} is no list of whole numbers, for example 1,4,8")
    return numbers
