"""``kvikk audit``: every miss in a request log, its cause, its place, its cost and its mend."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvikk.cli import options
from kvikk.errors import RequestError

if TYPE_CHECKING:
    from kvikk.audit.fail_on import Limit
    from kvikk.audit.run import AuditedLog


_PLAYED_AGAIN_BYTES = 32 << 20


def audit(
    logs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="LOG...", help="Files of JSON lines, plain or gzip; two: compare."),
    ] = None,
    listen: Annotated[
        bool,
        typer.Option(
            "--listen",
            rich_help_panel="Capture",
            help="Audit what passes through here to a provider, until Ctrl-C.",
        ),
    ] = False,
    upstream: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Capture",
            metavar="URL",
            help="The provider behind --listen; default: the vendor whose API a request speaks.",
        ),
    ] = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8788,
    record: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel="Capture",
            metavar="FILE",
            help="Append what passes to a log, without any key.",
        ),
    ] = None,
    together: Annotated[
        bool, typer.Option("--together", help="Two files are one log, not two to compare.")
    ] = False,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIMIT",
            help="Exit 1 if hit_rate<80%, cost>1.50, missed_tokens>1000, or a class is found.",
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as one HTML page too.")
    ] = None,
    mends: Annotated[
        bool | None,
        typer.Option(
            "--mends/--no-mends",
            help="Play the log again with each mend in it; default: if it is under 32 MiB.",
        ),
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Print the worst requests rewritten, where that can be.")
    ] = False,
    accounts: Annotated[
        bool, typer.Option("--accounts", help="With --json: each request's tokens by cause.")
    ] = False,
    as_json: options.Json = False,
) -> int:
    """Say why a prompt cache missed: cause, place in the request, cost and mend of every miss."""
    from kvikk.audit.fail_on import parse_limit

    limits = [parse_limit(text) for text in fail_on or []]
    if listen:
        if logs:
            raise RequestError("--listen takes no LOG: it audits what passes through it")
        audited = _capture(host, port, upstream, record)
        return _tell(audited, limits, html, accounts=False, fix=False, as_json=as_json)
    if not logs:
        raise RequestError("name a LOG to read, or --listen to capture requests as they are made")
    if upstream is not None or record is not None:
        raise RequestError("--upstream and --record are for --listen")
    if len(logs) == 2 and not together:
        audited = _compare(logs, as_json)
        return _judge(limits, audited)
    audited = _read(logs, accounts)
    if mends or (mends is None and sum(log.stat().st_size for log in logs) < _PLAYED_AGAIN_BYTES):
        from kvikk.audit.run import with_mends

        audited = with_mends(audited)
    return _tell(audited, limits, html, accounts=accounts, fix=fix, as_json=as_json)


def _tell(
    audited: "AuditedLog",
    limits: "list[Limit]",
    html: Path | None,
    *,
    accounts: bool,
    fix: bool,
    as_json: bool,
) -> int:
    """Print the report in the form that is wanted; returns the exit status."""
    if html is not None:
        _write_page(audited, html)
    if as_json:
        from kvikk.audit.document import write_json

        write_json(audited, sys.stdout, accounts=accounts, fixed=fix)
    else:
        from kvikk.audit.report import report

        print("\n".join(report(audited)))
        if fix:
            _print_fixes(audited)
    return _judge(limits, audited)


def _capture(host: str, port: int, upstream: str | None, record: Path | None) -> "AuditedLog":
    """Listen until stopped; findings are told as they come."""
    from kvikk.audit.capture.printer import Printer
    from kvikk.audit.capture.serve import capture

    return capture(host, port, upstream, record, Printer())


def _judge(limits: "list[Limit]", audited: "AuditedLog") -> int:
    """The exit status: 1 if a limit is broken, which is told."""
    from kvikk.audit.fail_on import failure

    failures = [line for limit in limits if (line := failure(limit, audited.totals)) is not None]
    for line in failures:
        print(f"kvikk: {line}", file=sys.stderr)
    return 1 if failures else 0


def _compare(logs: list[Path], as_json: bool) -> "AuditedLog":
    """Tell both beside each other; returns the second."""
    from kvikk.audit import comparison

    first, second = (_read([log]) for log in logs)
    if as_json:
        print(json.dumps(comparison.document(first, second)))
    else:
        print("\n".join(comparison.report(first, second)))
    return second


def _print_fixes(audited: "AuditedLog") -> None:
    from kvikk.audit.run import fixes

    for one in fixes(audited):
        print(f"\nrequest {one['request']:,} without {one['cause']}:")
        print(json.dumps(one["body"], indent=2, ensure_ascii=False))


def _write_page(audited: "AuditedLog", file: Path) -> None:
    from kvikk.audit.html import write_html

    try:
        with file.open("w", encoding="utf-8", errors="replace") as out:
            write_html(audited, out)
    except OSError as error:
        raise RequestError(f"cannot write {file}: {error.strerror or error}") from None


def _read(logs: list[Path], accounts: bool = False) -> "AuditedLog":
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
