"""``kvikk why``: where a request's prompt tokens went, and what would help."""

import json
import shutil
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from kvikk.cli import options
from kvikk.errors import RequestError

if TYPE_CHECKING:
    from rich.text import Text

    from kvikk.wire.ledger import LedgerSpan, RequestLedger

# How each cause is drawn, by a character where there is no colour. Hits of every tier look alike.
_MARKS = {
    "tail": ("·", "bright_black"),
    "partial": ("/", "yellow"),
    "in_flight": ("~", "magenta"),
    "elsewhere": (">", "magenta"),
    "evicted": ("x", "red"),
    "expired": ("-", "red"),
    "changed": ("!", "bright_red"),
    "isolated": ("|", "bright_blue"),
    "moved": ("≈", "bright_yellow"),
    "new": ("░", "blue"),
}
_HIT = ("█", "green")
_MOST_COLUMNS = 100


def why(
    request_id: Annotated[
        str | None,
        typer.Argument(metavar="[REQUEST_ID]", help="A response's id; it is in its headers too."),
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="The newest request.")] = False,
    url: options.ServerUrl = options.DEFAULT_URL,
    api_key: options.ServerKey = None,
    as_json: options.Json = False,
) -> None:
    """Tell why a request's prompt was computed and not reused, in plain words."""
    from kvikk.wire.client import ApiClient
    from kvikk.wire.ledger import RequestLedger

    if (request_id is None) != last:
        raise RequestError("choose one request: its id, or --last")
    client = ApiClient(url, api_key)
    if request_id is None:
        newest = list(client.get("v1/kvikk/requests", limit=1).get("requests").items())
        if not newest:
            raise RequestError(f"{url} has served no request yet")
        request_id = newest[0].get("id").string()
    answer = client.get(f"v1/kvikk/requests/{quote(request_id, safe='')}")
    ledger = RequestLedger.from_json(answer)
    if as_json:
        print(json.dumps(ledger.to_json()))
        return
    from rich.console import Console

    width = min(shutil.get_terminal_size().columns, _MOST_COLUMNS)
    Console(width=width, highlight=False).print(_page(ledger, width))


def _page(ledger: "RequestLedger", width: int) -> "Text":
    """The whole story, for a terminal of ``width`` columns."""
    from rich.text import Text

    page = Text()
    page.append(f"{ledger.id}  {ledger.route}  {_ago(ledger.at)}\n", "dim")
    if ledger.story is not None:
        page.append(f"{ledger.story.headline}\n\n", "bold")
    page.append_text(bar(ledger.spans, ledger.prompt_tokens, width)).append("\n")
    for place, (cause, tokens) in enumerate(ledger.by_cause.items()):
        character, style = mark(cause)
        page.append("   " if place else "")
        page.append(character * 2, style).append(f" {cause} {tokens:,}")
    for finding in [] if ledger.story is None else ledger.story.findings:
        page.append(f"\n\n{finding.text}")
        if finding.mend is not None:
            page.append("\n→ ", "bold").append(finding.mend, "bold")
    return page


def bar(spans: "Sequence[LedgerSpan]", prompt_tokens: int, width: int) -> "Text":
    """The prompt from its first token to its last; each cell shows what has most of its tokens."""
    from rich.text import Text

    drawn = Text()
    cells = min(width, prompt_tokens)
    edges = [cell * prompt_tokens // cells for cell in range(cells + 1)]
    first = 0
    for start, stop in pairwise(edges):
        while spans[first].stop <= start:
            first += 1
        tokens: dict[str, int] = {}
        for span in spans[first:]:
            if span.start >= stop:
                break
            shared = min(stop, span.stop) - max(start, span.start)
            tokens[span.cause] = tokens.get(span.cause, 0) + shared
        drawn.append(*mark(max(tokens, key=tokens.__getitem__)))
    return drawn


def mark(cause: str) -> tuple[str, str]:
    """The character and the style that a cause is drawn with."""
    return _HIT if cause.startswith("hit.") else _MARKS.get(cause, ("?", "default"))


def _ago(at_s: float) -> str:
    seconds = max(0, round(time.time() - at_s))
    return f"{seconds} s ago" if seconds < 120 else f"{seconds // 60} min ago"
