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
        f"{entry['cpu']}, {entry['threads']} threads, {' and '.join(dates)}."
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
