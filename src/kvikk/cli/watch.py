"""``kvikk watch``: what replicas hold, hit and lose, without being in their way."""

import asyncio
import json
import sys
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from kvikk.cli import options
from kvikk.cli.columns import columns
from kvikk.errors import RequestError

if TYPE_CHECKING:
    from kvikk.router.watch import FleetFigures, Watch

_HEADS = (
    *("replica", "held", "stored", "again", "scattered", "removed", "prompt tokens", "found"),
    *("running", "waiting", "memory", ""),
)
_REFRESH_S = 1.0


def watch(
    url: Annotated[
        list[str],
        typer.Argument(
            metavar="URL…",
            help="Replicas, without /v1; URL=tcp://HOST:PORT[,REPLAY] hears its KV events too.",
        ),
    ],
    api_key: Annotated[
        str | None, typer.Option(envvar="KVIKK_API_KEY", help="The replicas' key for /metrics.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.1, help="End after this time; default: Ctrl-C, with --json 5 seconds."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Watch a fleet: blocks each replica holds, computes again, or computes beside another's.

    held: blocks there now. stored: computed. again: of those, had been evicted before. scattered:
    of those, another replica held them at that moment. removed: evicted. found: share of prompt
    tokens reused, by the replica's metrics.
    """
    from kvikk.router.placement.options import parse_event_source
    from kvikk.router.watch import Watch, watched_sources

    events = dict(parse_event_source(text) for text in url if "=" in text)
    urls = [text.partition("=")[0] for text in url]
    for one in urls:
        if not one.startswith(("http://", "https://")):
            raise RequestError(f"{one!r} is no URL of a replica; write for example http://a:8000")
    watched = Watch(watched_sources(urls, events), api_key)
    shows = sys.stdout.isatty() and not as_json
    with suppress(KeyboardInterrupt):
        asyncio.run(_look(watched, seconds or (5.0 if as_json else None), shows))
    figures = watched.figures()
    if as_json:
        document = asdict(figures) | {"hit_rate": figures.hit_rate}
        print(json.dumps(document))
    elif not shows:
        print(_table(figures))


async def _look(watched: "Watch", seconds: float | None, shows: bool) -> None:
    """Watch for so long, and draw if somebody looks."""
    from rich.live import Live
    from rich.text import Text

    task = asyncio.create_task(watched.run())
    ends_s = None if seconds is None else asyncio.get_running_loop().time() + seconds
    live = Live(auto_refresh=False) if shows else None
    try:
        if live is not None:
            live.start()
        while ends_s is None or asyncio.get_running_loop().time() < ends_s:
            left_s = _REFRESH_S if ends_s is None else ends_s - asyncio.get_running_loop().time()
            await asyncio.wait([task], timeout=max(0.0, min(_REFRESH_S, left_s)))
            if task.done():
                task.result()
            if live is not None:
                live.update(Text(_table(watched.figures())), refresh=True)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if live is not None:
            live.stop()


def _table(figures: "FleetFigures") -> str:
    rows: list[tuple[str, ...]] = [_HEADS]
    for one in figures.replicas:
        found = f"{100 * one.hit_tokens / one.query_tokens:.1f} %" if one.query_tokens else "-"
        rows.append(
            (
                one.url,
                *(
                    f"{count:,}"
                    for count in (
                        *(one.held_blocks, one.stored_blocks, one.again_blocks),
                        *(one.scattered_blocks, one.removed_blocks, round(one.query_tokens)),
                    )
                ),
                found,
                f"{one.running_requests:.0f}",
                f"{one.waiting_requests:.0f}",
                f"{100 * one.memory_share:.0f} %",
                one.problem or (f"{one.gaps} gaps" if one.gaps else ""),
            )
        )
    total = (
        f"all: {100 * figures.hit_rate:.1f} % of prompt tokens found, "
        f"{figures.distinct_blocks:,} blocks, {figures.shared_blocks:,} of them more than once"
    )
    return f"{columns(rows, right=range(1, 11))}\n{total}"
