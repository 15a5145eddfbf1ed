"""An audit in words: causes by cost, the worst three before and after, and what is not sure."""

from collections.abc import Iterator

from kvikk.audit.findings import Finding, excerpt, is_expected
from kvikk.audit.mends.replay import Saving
from kvikk.audit.run import AuditedLog
from kvikk.audit.totals import CauseTotal, Totals

_WORST = 3
_WIDE = 72


def report(audited: AuditedLog) -> Iterator[str]:
    """The lines of the report."""
    totals = audited.totals
    yield from _head(audited)
    if totals.causes:
        yield ""
        yield from table(audited)
    for number, finding in enumerate(worst(totals), 1):
        yield ""
        yield from story(finding, number)
    yield from _doubts(audited)


def worst(totals: Totals) -> list[Finding]:
    """The worst finding of each of the three dearest causes that a mend would help."""
    mendable = [total for cause, total in totals.by_cost() if not is_expected(cause)]
    return [total.worst for total in mendable[:_WORST] if total.worst is not None]


def money(cost: float | None, in_input_tokens: float | None = None) -> str:
    """Dollars; else how many input tokens would cost as much; else that it is not known."""
    if cost is not None:
        return f"${cost:,.4f}" if cost < 1 else f"${cost:,.2f}"
    if in_input_tokens:
        return f"{in_input_tokens:,.0f} input tokens"
    return "not known"


def table(audited: AuditedLog) -> Iterator[str]:
    """A line a cause, the dearest first."""
    rows = [("cause", "findings", "missed tokens", "cost", "cost of all input with its mend")]
    rows += [
        (
            cause,
            f"{total.findings:,}",
            f"{total.missed_tokens:,}",
            cost_of(total),
            saved(audited.savings.get(cause)),
        )
        for cause, total in audited.totals.by_cost()
    ]
    columns = range(5 if audited.savings else 4)
    widths = [max(len(row[column]) for row in rows) for column in columns]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [row[column].rjust(widths[column]) for column in columns[1:]]
        yield "  ".join(cells).rstrip()


def saved(saving: Saving | None) -> str:
    """What a mend does to the whole log's input, by the rules: to its cost, else to tokens read."""
    if saving is None:
        return ""
    before, after = saving.without, saving.with_mend
    if before.in_input_tokens and after.in_input_tokens is not None:
        return f"{after.in_input_tokens / before.in_input_tokens - 1:+.1%}"
    return f"{after.read_tokens - before.read_tokens:+,} read"


def cost_of(total: CauseTotal) -> str:
    """What a cause cost in all."""
    known = None if total.unpriced else total.cost
    return money(known, total.cost_in_input_tokens) if total.missed_tokens else "none"


def story(finding: Finding, number: int) -> Iterator[str]:
    """One finding: where, what stood there before and after, and the mend."""
    beside = "" if finding.sibling is None else f", beside request {finding.sibling:,}"
    name = f" ({one_line(finding.id)})" if finding.id else ""
    yield f"{number}. {finding.cause} in request {finding.request:,}{name}{beside}"
    at = "" if finding.character is None else f", from character {finding.character:,} on"
    yield f"   {finding.missed_tokens:,} tokens missed at {finding.location}{at}"
    if finding.before or finding.after:
        yield f"   before  {one_line(finding.before)}"
        yield f"   after   {one_line(finding.after)}"
    if finding.note:
        yield f"   {finding.note}"
    yield f"   → {finding.mend}"


def one_line(text: str) -> str:
    """A text on one line, as much of it as fits."""
    return excerpt(" ".join(text.split()), _WIDE) or "(nothing)"


def _head(audited: AuditedLog) -> Iterator[str]:
    totals = audited.totals
    yield f"{audited.name}: {totals.requests:,} requests" + (
        f", {totals.failed:,} of them refused" if totals.failed else ""
    )
    if not totals.input_tokens:
        return
    yield (
        f"{totals.input_tokens:,} input tokens, {totals.hit_tokens:,} of them reused "
        f"({totals.hit_rate:.1%})"
    )
    share = totals.missed_tokens / totals.input_tokens
    relative = sum(
        total.cost_in_input_tokens
        for cause, total in totals.causes.items()
        if not is_expected(cause)
    )
    if totals.missed_tokens:
        yield (
            f"{totals.missed_tokens:,} more could have been reused ({share:.1%}); that they were "
            f"not cost {_in_words(money(totals.missed_cost, relative))}"
        )


def _in_words(cost: str) -> str:
    """A cost behind the word "cost"."""
    if cost.startswith("$"):
        return cost
    return "an amount that is not known" if cost == "not known" else f"as much as {cost}"


def _doubts(audited: AuditedLog) -> Iterator[str]:
    totals, counts = audited.totals, audited.counts
    books = totals.reconciliation
    lines = []
    if books.requests:
        difference = books.reported_read - books.ruled_read
        lines.append(
            f"providers report {books.reported_read:,} tokens read in {books.requests:,} requests; "
            f"by their rules it would be {books.ruled_read:,} ({difference:+,})"
        )
    if totals.uncounted:
        lines.append(f"tokens of {totals.uncounted:,} requests are estimated: no counts in the log")
    if totals.assumed:
        models = ", ".join(name or "(no model)" for name in sorted(totals.assumed)[:5])
        lines.append(f"no rules of caching are known for {models}; common ones were assumed")
    if counts.other:
        lines.append(f"{counts.other:,} records are no requests")
    if counts.broken:
        lines.append(f"{counts.broken:,} lines are broken: {'; '.join(counts.examples)}")
    if lines:
        yield ""
        yield from lines
