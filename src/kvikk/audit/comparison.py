"""Two logs beside each other: what came, what went, and what it is worth."""

from collections.abc import Iterator
from typing import Any

from kvikk.audit.document import summary
from kvikk.audit.run import AuditedLog


def causes(first: AuditedLog, second: AuditedLog) -> dict[str, tuple[int, int]]:
    """Missed tokens of each cause in both, the greatest change first."""
    names = {*first.totals.causes, *second.totals.causes}

    def missed(log: AuditedLog, name: str) -> int:
        total = log.totals.causes.get(name)
        return 0 if total is None else total.missed_tokens

    found = {name: (missed(first, name), missed(second, name)) for name in names}
    return dict(sorted(found.items(), key=lambda one: (-abs(one[1][1] - one[1][0]), one[0])))


def new_findings(first: AuditedLog, second: AuditedLog) -> Iterator[dict[str, Any]]:
    """Findings of the second log of a class and place that the first one has not."""
    known = {(one["cause"], one["location"]) for one in first.totals.findings()}
    for finding in second.totals.findings():
        if (finding["cause"], finding["location"]) not in known:
            yield finding


def document(first: AuditedLog, second: AuditedLog) -> dict[str, Any]:
    """The comparison as ``kvikk audit A B --json`` prints it."""
    return {
        "a": summary(first),
        "b": summary(second),
        "requests": second.totals.requests,
        "hit_rate_difference": round(second.totals.hit_rate - first.totals.hit_rate, 6),
        "totals": {
            name: {"a": before, "b": after, "difference": after - before}
            for name, (before, after) in causes(first, second).items()
        },
        "findings": list(new_findings(first, second)),
    }


def report(first: AuditedLog, second: AuditedLog) -> Iterator[str]:
    """The comparison in words."""
    for name, log in (("A", first), ("B", second)):
        totals = log.totals
        yield (
            f"{name}  {log.name}: {totals.requests:,} requests, {totals.input_tokens:,} input "
            f"tokens, {totals.hit_rate:.1%} reused, {totals.missed_tokens:,} missed"
        )
    changed = {name: pair for name, pair in causes(first, second).items() if pair[0] != pair[1]}
    yield ""
    if not changed:
        yield "no cause misses more or fewer tokens in one than in the other"
        return
    width = max(len(name) for name in changed)
    yield f"{'missed tokens'.ljust(width)}  {'A':>12}  {'B':>12}  {'change':>12}"
    for name, (before, after) in changed.items():
        yield f"{name.ljust(width)}  {before:>12,}  {after:>12,}  {after - before:>+12,}"
    new = list(new_findings(first, second))
    if new:
        yield ""
        yield f"at places where A has none B has {len(new):,}, first among them"
        for finding in new[:3]:
            yield f"  {finding['cause']} at {finding['location']}, request {finding['request']:,}"
