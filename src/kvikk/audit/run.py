"""Audits a whole log: reads it, feeds each exchange to an auditor, adds everything up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvikk.audit.auditor import Auditor
from kvikk.audit.readers.log import LogCounts, LogReader
from kvikk.audit.totals import Totals
from kvikk.errors import RequestError


@dataclass(frozen=True)
class AuditedLog:
    """A log's sums, and what became of its lines."""

    name: str
    totals: Totals
    counts: LogCounts


def audit_log(
    files: Sequence[Path],
    progress: Callable[[int], None] = lambda _: None,
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
    return AuditedLog(name, totals, counts)
