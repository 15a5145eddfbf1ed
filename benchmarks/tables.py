"""Measured entries as Markdown."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

Entry = Mapping[str, Any]
OURS = ("kvikk", "kvikk over HTTP")


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def speed_tables(entries: Mapping[str, Entry]) -> str:
    """A section a model: prefill, decoding, many streams; tokens a second."""
    parts = []
    for model in dict.fromkeys(name.split(", ")[0] for name in entries):
        parts.append(f"### {model}")
        for kind in ("prefill", "decode", "batch"):
            found = {
                name.rpartition("-")[2]: entry
                for name, entry in entries.items()
                if name.startswith(f"{model}, {kind}-") and entry["peers"]
            }
            if found:
                parts.append(_heading(kind, found) + "\n\n" + _speed_table(kind, found))
        share = _bandwidth_line(model, entries)
        if share:
            parts.append(share)
    versions = {
        peer: told["version"]
        for entry in entries.values()
        for peer, told in entry["peers"].items()
        if told["version"]
    }
    parts.append("Versions: " + "; ".join(f"{name}: {told}" for name, told in versions.items()))
    return "\n\n".join(parts)


def _heading(kind: str, entries: Mapping[str, Entry]) -> str:
    what = {
        "prefill": "Prefill, one stream, by tokens of the prompt",
        "decode": "Decoding, one stream, by tokens of context",
        "batch": "128 tokens in and 128 out, by streams",
    }[kind]
    entry = next(iter(entries.values()))
    rounds = max(len(told["per_s"]) for told in entry["peers"].values())
    dates = sorted({one["date"] for one in entries.values()})
    return (
        f"{what}. Tokens a second: median of {rounds} rounds (lowest to highest), kvikk's over it. "
        f"{entry['cpu']}, {entry['threads']} threads{_core_distance(*entries.values())}, "
        f"{' and '.join(dates)}."
    )


def _speed_table(kind: str, entries: Mapping[str, Entry]) -> str:
    columns = sorted(entries, key=int)
    peers = dict.fromkeys(peer for column in columns for peer in entries[column]["peers"])
    rows = [[peer, *(_cell(kind, entries[column], peer) for column in columns)] for peer in peers]
    return markdown(["", *(f"{int(column):,}" for column in columns)], rows)


def _cell(kind: str, entry: Entry, peer: str) -> str:
    if peer not in entry["peers"]:
        return "-"
    per_s = entry["peers"][peer]["per_s"]
    cell = f"{median(per_s):,.0f} ({min(per_s):,.0f} to {max(per_s):,.0f})"
    # Servers are compared with our server, engines with our engine.
    ours = OURS[1] if "server" in peer else OURS[0]
    if peer in OURS or ours not in entry["peers"]:
        return cell
    return f"{cell}, **{median(entry['peers'][ours]['per_s']) / median(per_s):.2f}x**"


def _bandwidth_line(model: str, entries: Mapping[str, Entry]) -> str | None:
    """How much of the memory's speed decoding at 64 uses: weights are all it reads there."""
    read = entries.get(f"{model}, bandwidth", {}).get("peers", {}).get(OURS[0])
    decoded = entries.get(f"{model}, decode-64", {}).get("peers", {}).get(OURS[0])
    if not read or not decoded:
        return None
    bandwidth = median(read["per_s"])
    used = median(decoded["per_s"]) * decoded["weight_bytes"]
    return (
        f"Memory was read at {bandwidth / 1e9:.1f} GB/s in the same process; decoding at 64 reads "
        f"{decoded['weight_bytes'] / 1e6:.1f} MB of weights a token, {used / 1e9:.1f} GB/s: "
        f"{100 * used / bandwidth:.0f} % of it."
    )


def conversation_table(entries: Mapping[str, Entry]) -> str:
    """A row a server; ours first, then by total time."""
    rows = []
    order = sorted(
        entries,
        key=lambda name: (name not in OURS, -entries[name]["turns"], entries[name]["total_s"]),
    )
    for name in order:
        entry = entries[name]
        turns = f", {entry['turns']} turns only" if entry["turns"] != 10 else ""
        errors = f", errors: {entry['errors']}" if entry["errors"] else ""
        rows.append(
            [
                f"{name}{turns}{errors}",
                f"{entry['total_s']:.1f}",
                f"{entry['output_tokens_per_s']:.0f}",
                _pair(entry["first_turn_ttft_s"]),
                _pair(entry["later_turns_ttft_s"]),
                _reused(entry),
                _cold_and_warm(entry),
                f"{entry['start_s']:.1f}",
            ]
        )
    header = [
        "server",
        "total, s",
        "output tokens/s",
        "first token, turn 1, s (mean / p95)",
        "later turns, s (mean / p95)",
        "prompt tokens reused",
        "4,000-token prompt, cold / warm, s",
        "start, s",
    ]
    told = "; ".join(
        f"{name}: {entries[name]['software']}, {entries[name]['date']}" for name in entries
    )
    entry = next(iter(entries.values()))
    return f"{entry['cpu']}, {entry['threads']} threads. {told}.\n\n{markdown(header, rows)}"


def _cold_and_warm(entry: Entry) -> str:
    cold_s, warm_s = entry["cold_ttft_s"], entry["warm_ttft_s"]
    return f"{cold_s:.2f} / {warm_s:.3f}, {cold_s / warm_s:.0f}x"


def _pair(mean_and_p95: Sequence[float] | None) -> str:
    return "-" if mean_and_p95 is None else " / ".join(f"{value:.2f}" for value in mean_and_p95)


def _reused(entry: Entry) -> str:
    if entry["cached_tokens"] is None or not entry["prompt_tokens"]:
        return "-"
    share = 100 * entry["cached_tokens"] / entry["prompt_tokens"]
    return f"{entry['cached_tokens']:,} of {entry['prompt_tokens']:,} ({share:.0f} %)"


def growth_tables(entries: Mapping[str, Entry]) -> str:
    """A table an entry: milliseconds, and what they come to a token."""
    parts = []
    for name, entry in entries.items():
        model, _, kind = name.partition(", ")
        what, unit = {
            "context": ("tokens of context", "ms a token"),
            "batch": ("streams", "ms a step"),
            "prompt": ("tokens of the prompt", "ms to the first token"),
        }[kind]
        rows = []
        for size, values in entry["ms"].items():
            row = [
                f"{int(size):,}",
                f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})",
            ]
            if kind != "context":
                row.append(f"{median(values) / int(size):.3f}")
            rows.append(row)
        header = [what, unit] + (["ms a token"] if kind != "context" else [])
        rounds = len(next(iter(entry["ms"].values())))
        parts.append(
            f"{model}, median of {rounds} rounds (lowest to highest). {_conditions(entry)}.\n\n"
            + markdown(header, rows)
        )
    return "\n\n".join(parts)


def footprint_tables(entries: Mapping[str, Entry]) -> str:
    """Starts, then memory."""
    started = {name: entry for name, entry in entries.items() if "later_s" in entry}
    filled = {name: entry for name, entry in entries.items() if "planned" in entry}
    parts = []
    if started:
        rows = [
            [
                name.partition(", ")[0],
                f"{entry['first_s']:.1f}",
                _spread(entry["later_s"]),
            ]
            for name, entry in started.items()
        ]
        header = ["model", "first start, compiling, s", "later starts, s, median"]
        parts.append(_conditions(next(iter(started.values()))) + ".\n\n" + markdown(header, rows))
    if filled:
        rows = [_memory_row(name.partition(", ")[0], entry) for name, entry in filled.items()]
        header = ["model", "planned, MiB", "resident at rest, MiB", "all blocks written, MiB"]
        parts.append(_conditions(next(iter(filled.values()))) + ".\n\n" + markdown(header, rows))
    return "\n\n".join(parts)


def tier_table(entries: Mapping[str, Entry]) -> str:
    """A table a model: seconds to the first token by where the prompt was."""
    parts = []
    for name, entry in entries.items():
        times = entry["seconds"]
        computed_s = median(times["computed"])
        rows = [
            [
                way,
                f"{median(values):.3f} ({min(values):.3f} to {max(values):.3f})",
                "" if way == "computed" else f"**{computed_s / median(values):.1f}x**",
            ]
            for way, values in times.items()
        ]
        parts.append(
            f"{name}, a prompt of {entry['tokens']:,} tokens, {_mib(entry['prompt_bytes'])} MiB of "
            f"blocks; median of {len(times['computed'])} rounds (lowest to highest). "
            f"{_conditions(entry)}. {entry['versions']}.\n\n"
            + markdown(["the prompt is", "first token after, s", "computing it takes"], rows)
        )
    return "\n\n".join(parts)


def fixed_memory_table(entry: Entry) -> str:
    """A row a way to spend the same memory."""
    rows = [_fixed_memory_row(run, entry["price_per_hour"]) for run in entry["runs"]]
    header = [
        "KV in",
        "bytes a token",
        "at once, mean (most)",
        "waste",
        "tokens/s",
        "ms a token",
        f"cost of a million tokens at {entry['price_per_hour']:g} an hour",
        "preempted",
    ]
    return (
        f"{entry['conversations']} conversations, {entry['memory_mib']} MiB for keys and values; "
        f"{_conditions(entry)}; {entry['versions']}\n\n{markdown(header, rows)}"
    )


def _fixed_memory_row(run: Entry, price_per_hour: float) -> list[str]:
    per_s = run["tokens"] / run["seconds"]
    return [
        run["name"],
        f"{run['bytes_per_token']:,}",
        f"{run['at_once_mean']:.1f} ({run['at_once_most']})",
        f"{100 * run['waste']:.1f} %",
        f"{per_s:,.0f}",
        f"{run['token_ms']:.1f}",
        f"{price_per_hour / 3600 / per_s * 1e6:.2f}",
        f"{run['preemptions']}",
    ]


def _memory_row(model: str, entry: Entry) -> list[str]:
    planned = ", ".join(f"{name} {_mib(size)}" for name, size in entry["planned"].items())
    moments = [
        f"{_mib(entry[moment]['own'])} + {_mib(entry[moment]['mapped'])} of mapped files"
        for moment in ("at_rest", "under_load")
    ]
    return [model, f"{planned}: {_mib(sum(entry['planned'].values()))}", *moments]


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.0f}"


def _conditions(entry: Entry) -> str:
    return f"{entry['cpu']}, {entry['threads']} threads{_core_distance(entry)}, {entry['date']}"


def _core_distance(*entries: Entry) -> str:
    """How long a cache line took from core to core and back, where that was measured."""
    measured = (ns for entry in entries for ns in entry.get("round_trips_ns", ()))
    times = sorted({round(ns) for ns in measured if ns is not None})
    if not times:
        return ""
    span = f"{times[0]}" if len(times) == 1 else f"{times[0]} to {times[-1]}"
    return f" {span} ns apart"
