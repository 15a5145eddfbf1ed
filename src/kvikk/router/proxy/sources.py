"""Replicas that are named by others: a file that may change, a name that may resolve anew."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from kvikk.errors import RequestError
from kvikk.router.proxy.fleet import Fleet
from kvikk.router.proxy.origin import Origin, parse_origin

Say = Callable[[str], None]
FILE_EVERY_S = 0.5
DNS_EVERY_S = 5.0


def read_file(path: Path) -> list[Origin]:
    """The replicas that a file names, one URL a line; ``#`` begins a comment. RequestError."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read {path}: {error}", "replicas_file") from None
    urls = (line.partition("#")[0].strip() for line in lines)
    return [parse_origin(url) for url in urls if url]


async def resolve(url: str) -> list[Origin]:
    """A replica for each address of the URL's host. Raises RequestError, OSError."""
    named = parse_origin(url)
    found = await asyncio.get_running_loop().getaddrinfo(
        named.host, named.port, type=socket.SOCK_STREAM
    )
    addresses = sorted({str(entry[4][0]) for entry in found})
    return [parse_origin(url, address) for address in addresses]


async def follow_file(fleet: Fleet, path: Path, patience_s: float, say: Say) -> None:
    """Keep the fleet as the file says, whenever it changes."""
    seen: tuple[float, int] | None = None
    while True:
        try:
            status = path.stat()
            now = (status.st_mtime_ns, status.st_size)
            if now != seen:
                seen = now
                await reconcile(fleet, f"file {path}", read_file(path), patience_s)
        except (OSError, RequestError) as error:
            say(f"replicas stay as they are: {error}")
        await asyncio.sleep(FILE_EVERY_S)


async def follow_name(
    fleet: Fleet,
    url: str,
    patience_s: float,
    say: Say,
    look_up: Callable[[str], Awaitable[list[Origin]]] = resolve,
    every_s: float = DNS_EVERY_S,
) -> None:
    """Keep a replica for each address that a name resolves to."""
    while True:
        try:
            origins = await look_up(url)
            if origins:
                await reconcile(fleet, f"dns {url}", origins, patience_s)
        except OSError as error:
            say(f"{url} does not resolve, replicas stay as they are: {error}")
        await asyncio.sleep(every_s)


async def reconcile(fleet: Fleet, source: str, wanted: Iterable[Origin], patience_s: float) -> None:
    """Add what is new, and let go what this source named and names no more."""
    urls = {origin.url: origin for origin in wanted}
    for replica in fleet:
        is_gone = replica.source == source and replica.pool.origin.url not in urls
        if is_gone and not replica.is_draining:
            fleet.leave_later(replica, patience_s)
    for url, origin in urls.items():
        known = fleet.find(url)
        if known is None or (known.is_draining and known.source == source):
            fleet.add(origin, source)
