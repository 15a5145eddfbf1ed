"""What ``router.py`` has measured, as Markdown."""

from collections.abc import Iterator, Mapping
from typing import Any

from tables import markdown

_HEADER = (
    "router",
    "added to the first byte, p50 / p99, µs",
    "47 KB prompts",
    "first event",
    "requests/s",
    "47 KB",
    "CPU, ms",
    "47 KB",
    "CPU of a stream, ms",
    "events/s",
)


def router_table(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """A row a router, then what memory its figures tell of."""
    direct = entries["none"]
    measured = {
        name: one for name, one in entries.items() if name != "none" and "many, small" in one
    }
    rows = [(name, *_cells(one, direct)) for name, one in measured.items()]
    parts = [markdown(_HEADER, rows), *_memory(measured)]
    versions = dict.fromkeys(one["version"] for one in measured.values())
    told = next(iter(measured.values()))
    if "cpu" in told:
        dates = sorted({one["date"] for one in measured.values()})
        parts.append(f"{told['cpu']}, a core for the router, {' and '.join(dates)}.")
    parts.append(f"Versions: {', '.join(versions)}.")
    return "\n\n".join(parts)


def _cells(one: Mapping[str, Any], direct: Mapping[str, Any]) -> Iterator[str]:
    for kind in ("one, small", "one, large", "one, stream"):
        added = [
            one[kind][key] - direct[kind][key] for key in ("first_byte_p50_us", "first_byte_p99_us")
        ]
        yield " / ".join(f"{value:,.0f}" for value in added)
    for kind in ("many, small", "many, large"):
        yield f"{one[kind]['requests_per_s']:,.0f}"
    for kind in ("many, small", "many, large", "streams"):
        yield f"{one[kind]['cpu_ms_per_request']:.3f}"
    yield f"{one['fast streams']['chunks_per_s']:,.0f}"


def _memory(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, one in entries.items():
        if "memory" in one:
            points = ", ".join(
                f"{point['mib']:,.0f} after {point['prompts']:,.0f}" for point in one["memory"]
            )
            yield f"{name}, MiB resident and distinct prompts: {points}."
