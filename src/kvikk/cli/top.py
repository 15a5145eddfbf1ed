"""``kvikk top``: the cache of a running server at work, in a terminal."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvikk.cli import options
from kvikk.errors import KvikkError

if TYPE_CHECKING:
    from kvikk.wire.client import ApiClient

REFRESH_S = 1.0


def top(
    url: Annotated[
        str, typer.Argument(metavar="[URL]", help="The server, without /v1.")
    ] = options.DEFAULT_URL,
    api_key: options.ServerKey = None,
    once: Annotated[bool, typer.Option("--once", help="Print what is seen now, and end.")] = False,
    as_json: options.Json = False,
) -> None:
    """Watch a server: blocks, hits beside what is attainable, causes, requests. q ends."""
    from kvikk.wire.client import ApiClient

    watched = _Watched(ApiClient(url, api_key))
    if as_json:
        watched.look()
        print(json.dumps(_document(watched)))
    elif once or not sys.stdout.isatty():
        from rich.console import Console

        from kvikk.cli.top_view import screen

        watched.look()
        console = Console(highlight=False)
        shown = screen(watched.model, url, watched.view, watched.ledger, console.width, None)
        console.print(shown)
    else:
        _watch(watched, url)


class _Watched:
    """One server, and what is known of it; ``lock`` guards the view."""

    def __init__(self, client: "ApiClient") -> None:
        from kvikk.wire.live import LiveView

        self._client = client
        self.lock = Lock()
        self.view: LiveView = LiveView()
        self.ledger: dict[str, Any] = {}
        self.failure: KvikkError | None = None
        served = list(client.get("v1/models").get("data").items())
        self.model = served[0].get("id").string() if served else "no model"
        self.read_ledger()

    def read_ledger(self) -> None:
        """Ask for the last hour's totals."""
        self.ledger = dict(self._client.get("v1/kvikk/ledger", window=3600).members())

    def look(self) -> None:
        """Listen for about a second, long enough to see how fast tokens come."""
        started_s = None
        for event in self._client.events("v1/kvikk/live"):
            self.view.hear(event)
            started_s = self.view.at_s if started_s is None else started_s
            if self.view.at_s - started_s >= 0.9 * REFRESH_S:
                return

    def listen(self) -> None:
        """Listen until the server ends; ``failure`` says how."""
        from kvikk.errors import ModelError

        try:
            for event in self._client.events("v1/kvikk/live"):
                with self.lock:
                    self.view.hear(event)
            self.failure = ModelError("the server has ended")
        except KvikkError as error:
            self.failure = error


def _watch(watched: _Watched, url: str) -> None:
    """Draw until q or Ctrl-C. Raises what the server failed with."""
    from rich.console import Console
    from rich.live import Live

    from kvikk.cli.top_view import screen

    console = Console(highlight=False)
    Thread(target=watched.listen, daemon=True).start()
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while watched.failure is None:
            watched.read_ledger()
            with watched.lock:
                shown = screen(
                    watched.model, url, watched.view, watched.ledger, console.width, console.height
                )
            live.update(shown, refresh=True)
            if pressed(REFRESH_S) == "q":
                return
    raise watched.failure


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits some seconds for a key: the key, or "" if none was pressed."""
    if not sys.stdin.isatty():

        def wait(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield wait
        return
    import select
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)

    def wait_for_key(seconds: float) -> str:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return sys.stdin.read(1) if ready else ""

    try:
        yield wait_for_key
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _document(watched: _Watched) -> dict[str, Any]:
    from dataclasses import asdict

    view = watched.view
    return {
        "model": watched.model,
        "at": view.at_s,
        "engine": None if view.engine is None else asdict(view.engine),
        "blocks": view.blocks,
        "tokens_per_s": view.tokens_per_s,
        "rates": watched.ledger.get("rates"),
        "by_cause": watched.ledger.get("by_cause"),
        "requests": [asdict(request) for request in reversed(view.requests.values())],
    }
