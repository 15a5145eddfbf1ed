"""Audits a whole log: reads it, feeds each exchange to an auditor, adds everything up."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvikk.audit.auditor import Auditor
from kvikk.audit.findings import is_expected
from kvikk.audit.mends.replay import Saving, fixed, savings
from kvikk.audit.readers.log import LogCounts, LogReader
from kvikk.audit.secrets import without_secrets
from kvikk.audit.totals import Totals
from kvikk.errors import RequestError

# What the mends of so many causes save is asked, the dearest first: each is a pass over the log.
_MOST_MENDS = 8
_MOST_FIXED = 3


@dataclass(frozen=True)
class AuditedLog:
    """A log's sums, what became of its lines, and what each cause's mend would have saved."""

    name: str
    files: tuple[Path, ...]
    totals: Totals
    counts: LogCounts
    savings: dict[str, Saving] = field(default_factory=dict)


def _silent(_: int) -> None:
    """For who does not watch."""


def audit_log(
    files: Sequence[Path],
    progress: Callable[[int], None] = _silent,
    *,
    accounts: bool = False,
) -> AuditedLog:
    """Audit ``files`` as one log, in the order given. ``progress`` is told bytes read.

    Raises RequestError if a file cannot be read, or if nothing in it is a request.
    """
    reader, auditor, totals = LogReader(files, progress), Auditor(), Totals()
    if accounts:
        totals.keep_accounts()
    for exchange in reader:
        totals.add(auditor.feed(exchange))
    for finding in auditor.close():
        totals.find(finding)
    counts = reader.counts
    name = str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
    if counts.lines and not totals.requests:
        seen = f"{counts.lines:,} lines" + (f", {counts.broken:,} broken" if counts.broken else "")
        raise RequestError(
            f"no request in {name}: {seen}; expected a JSON object a line, such as "
            '{"request": {"model": …, "messages": […]}}'
        )
    return AuditedLog(name, tuple(files), totals, counts)


def with_mends(audited: AuditedLog, progress: Callable[[int], None] = _silent) -> AuditedLog:
    """The same, with the log played again for each of the dearest causes."""
    causes = [
        cause
        for cause, total in audited.totals.by_cost()
        if total.missed_tokens and not is_expected(cause)
    ]
    found = savings(
        lambda: LogReader(audited.files, progress), causes[:_MOST_MENDS], audited.totals.findings
    )
    return replace(audited, savings={saving.cause: saving for saving in found})


def fixes(audited: AuditedLog) -> Iterator[dict[str, Any]]:
    """Worst requests of the dearest causes, rewritten: ``request``, ``cause`` and ``body``."""
    told = 0
    for cause, total in audited.totals.by_cost():
        if is_expected(cause) or total.worst is None or told == _MOST_FIXED:
            continue
        finding = total.worst.to_json()
        body = fixed(lambda: LogReader(audited.files, _silent), finding, audited.totals.findings)
        if body is not None:
            told += 1
            yield {"request": finding["request"], "cause": cause, "body": without_secrets(body)}
