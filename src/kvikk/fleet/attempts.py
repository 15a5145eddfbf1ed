"""One request of one client, and its attempts at replicas, as the ingress keeps them.

An attempt passes between two event loops: the ingress owns the request, the request router the
choice. What the router writes is read by the ingress only after Serve has handed over the replica.
"""

from dataclasses import dataclass
from typing import Any

from kvikk.fleet.ledger.records import Batch
from kvikk.router.proxy.placement import Asked, Reported
from kvikk.router.records import Decision, RoutedRequest

# What a replica answers that could answer later, or another one now.
BUSY = (429, 503)


@dataclass(slots=True, eq=False)
class Attempt:
    """An attempt to have a request answered; its id is its own for ever, minted by the ledger.

    ``has_prompt`` says that a replica computes something for it, so that it matters which.
    ``wanted`` names the one replica that may answer, "" for any; ``tried`` are the ids of those
    that failed the request before. Serve asks for a choice as often as it likes: ``decision`` is
    the last one, and an account of it is kept only once (see ``Members``). ``ended`` is set once
    nobody waits for it any more.
    """

    id: str
    asked: Asked
    has_prompt: bool = True
    wanted: str = ""
    tried: frozenset[str] = frozenset()
    routed: RoutedRequest | None = None
    decision: Decision | None = None
    ended: bool = False


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What a replica gets of a client's request: all of it."""

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    client: tuple[str, int] | None

    def scope(self) -> dict[str, Any]:
        """As ASGI has it."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "http",
            "method": self.method,
            "path": self.path,
            "raw_path": self.path.encode(),
            "root_path": "",
            "query_string": self.query,
            "headers": list(self.headers),
            "client": self.client,
            "server": None,
            "state": {},
        }


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a replica's answer."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a replica's answer: the attempt's record for the fleet's ledger, and its usage.

    A request without a prompt has neither, and ``usage`` is None too where no engine got it.
    """

    batch: Batch | None
    usage: Reported | None


Frame = Head | bytes | Tail
