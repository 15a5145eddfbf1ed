"""``kvikk audit``: every miss in a request log, its cause, its place, its cost and its mend."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvikk.cli import options

if TYPE_CHECKING:
    from kvikk.audit.run import AuditedLog


def audit(
    logs: Annotated[
        list[Path],
        typer.Argument(metavar="LOG...", help="Files of JSON lines, plain or gzip."),
    ],
    accounts: Annotated[
        bool, typer.Option("--accounts", help="With --json: each request's tokens by cause.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Say why a prompt cache missed: cause, place in the request, cost and mend of every miss."""
    audited = _audited(logs, accounts)
    if as_json:
        from kvikk.audit.document import write_json

        write_json(audited, sys.stdout, accounts=accounts)
        return
    print(json.dumps({cause: total.to_json() for cause, total in audited.totals.by_cost()}))


def _audited(logs: list[Path], accounts: bool) -> "AuditedLog":
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from kvikk.audit.run import audit_log

    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    size = sum(log.stat().st_size for log in logs if log.is_file())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("", total=size)
        return audit_log(logs, lambda read: progress.advance(task, read), accounts=accounts)
