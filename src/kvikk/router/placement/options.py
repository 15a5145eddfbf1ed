"""What the router is told about choosing replicas."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from kvikk.errors import RequestError
from kvikk.router.placement.prompts import TextSide
from kvikk.router.policies import DEFAULT_POLICY, POLICIES

_ADDRESS = re.compile(r"tcp://(\[[0-9a-fA-F:]+\]|[^:/\s]+):(?P<port>\d{1,5})|ipc://\S+")


# In place of a URL it stands for every replica, and in place of a host for the replica's own.
ANY = "*"


class EventSource(NamedTuple):
    """Where a replica publishes KV events, and where it repeats them, if it does."""

    endpoint: str
    replay: str | None

    def at(self, host: str) -> "EventSource":
        """The same with ``host`` where it has ``*``."""
        address = f"[{host}]" if ":" in host else host
        found = [one and one.replace("tcp://*:", f"tcp://{address}:") for one in self]
        return EventSource(found[0] or "", found[1])


@dataclass(frozen=True)
class PlacementOptions:
    """How replicas are chosen. Raises RequestError for what makes no sense.

    ``events`` has the sources of replicas that tell what they hold, by URL or for ``*``, any.
    ``capacity_tokens`` is what a replica holds that nobody can ask. ``text_side`` tokenises;
    without one, and for what is more than text, content is compared.
    """

    policy: str = DEFAULT_POLICY
    events: Mapping[str, EventSource] = field(default_factory=dict)
    text_side: TextSide | None = None
    capacity_tokens: int = 1 << 20
    replica_key: str | None = field(default=None, repr=False)
    decision_log: Path | None = None

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise RequestError(
                f"unknown policy {self.policy!r}; there are {', '.join(POLICIES)}", "policy"
            )
        if self.capacity_tokens < 1:
            raise RequestError("a replica's cache holds at least 1 token", "capacity_tokens")

    def event_source(self, url: str) -> EventSource | None:
        """Where the replica at ``url`` tells what it holds, if it does."""
        found = self.events.get(url.rstrip("/")) or self.events.get(ANY)
        return None if found is None else found.at(urlsplit(url).hostname or "")


def parse_event_source(text: str) -> tuple[str, EventSource]:
    """``URL=tcp://host:5557`` or ``URL=tcp://host:5557,tcp://host:5558``. Raises RequestError.

    ``*`` in place of the URL is every replica, ``*`` in place of a host the replica's own.
    """
    url, _, endpoints = text.partition("=")
    endpoint, _, replay = endpoints.partition(",")
    names_replica = url == ANY or url.startswith(("http://", "https://"))
    for address in (endpoint, *([replay] if replay else [])):
        named = _ADDRESS.fullmatch(address)
        if not names_replica or not named or not 1 <= int(named["port"] or 1) <= 65535:
            raise RequestError(
                f"{text!r} names no KV events; write URL=tcp://HOST:PORT, and behind a comma where "
                "they are repeated",
                "kv_events",
            )
    return url.rstrip("/"), EventSource(endpoint, replay or None)
