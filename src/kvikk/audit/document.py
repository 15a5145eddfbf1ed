"""An audit as one JSON document, written piece by piece: it may be larger than memory."""

import json
from collections.abc import Iterable
from typing import Any, TextIO

from kvikk.audit.run import AuditedLog, fixes


def summary(audited: AuditedLog) -> dict[str, Any]:
    """All of the document but its lists."""
    totals, counts = audited.totals, audited.counts
    return {
        "log": {
            "name": audited.name,
            "lines": counts.lines,
            "broken": counts.broken,
            "not_requests": counts.other,
            "examples": counts.examples,
        },
        "requests": totals.requests,
        "failed": totals.failed,
        "estimated": totals.uncounted,
        "input_tokens": totals.input_tokens,
        "hit_tokens": totals.hit_tokens,
        "hit_rate": round(totals.hit_rate, 6),
        "missed_tokens": totals.missed_tokens,
        "missed_cost": totals.missed_cost,
        "cost": None if totals.unpriced else round(totals.cost, 9),
        "uncached_cost": None if totals.unpriced else round(totals.uncached_cost, 9),
        "totals": {cause: total.to_json() for cause, total in totals.by_cost()},
        "mends": {cause: saving.to_json() for cause, saving in audited.savings.items()},
        "reconciliation": totals.reconciliation.to_json(),
        "assumed_rules": totals.assumed,
    }


def write_json(
    audited: AuditedLog, out: TextIO, *, accounts: bool = False, fixed: bool = False
) -> None:
    """Write the document to ``out``."""
    out.write(json.dumps(summary(audited))[:-1])
    _write_list(out, "findings", audited.totals.findings())
    if accounts:
        _write_list(out, "accounts", audited.totals.accounts())
    if fixed:
        _write_list(out, "fixed", fixes(audited))
    out.write("}\n")


def _write_list(out: TextIO, name: str, items: Iterable[dict[str, Any]]) -> None:
    out.write(f', "{name}": [')
    for index, item in enumerate(items):
        out.write(", " if index else "")
        out.write(json.dumps(item))
    out.write("]")
