"""The fleet's ledger as it is shown: an object for JSON, and lines for Prometheus."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from kvikk.fleet.ledger.books import FleetLedger
from kvikk.router.proxy.metrics import family


def ledger_json(ledger: FleetLedger) -> dict[str, Any]:
    """Totals since the start, their rates, and tokens by cause of each replica's attempts."""
    totals = ledger.totals()
    return asdict(totals) | {"rates": asdict(totals.rates), "by_replica": ledger.by_replica()}


def exposition(ledger: FleetLedger) -> str:
    """Lines in Prometheus' text format."""
    return "".join(f"{line}\n" for line in _lines(ledger))


def _lines(ledger: FleetLedger) -> Iterator[str]:
    totals = ledger.totals()
    # No counters: a record that comes late takes tokens back from "lost".
    yield from family(
        "kvikk_fleet_prompt_tokens",
        "gauge",
        "Prompt tokens of requests by what became of them, by the replicas' own accounts.",
        [({"cause": cause}, tokens) for cause, tokens in totals.by_cause.items()],
    )
    yield from family(
        "kvikk_fleet_superseded_prompt_tokens",
        "gauge",
        "Prompt tokens of attempts that another one took the place of.",
        [({"cause": cause}, tokens) for cause, tokens in totals.superseded_by_cause.items()],
    )
    for name, kind, text, value in (
        ("requests_total", "counter", "Requests that are accounted for.", totals.requests),
        (
            "open_attempts",
            "gauge",
            "Attempts that are not accounted for yet.",
            totals.open_attempts,
        ),
        ("late_records_total", "counter", "Records of what was taken for lost.", totals.late),
        ("record_gaps_total", "counter", "Gaps seen in records' numbers.", totals.gaps),
    ):
        yield from family(f"kvikk_fleet_{name}", kind, text, [({}, value)])
