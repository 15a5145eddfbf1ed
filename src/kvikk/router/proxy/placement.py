"""What the proxy asks of whoever decides where requests go, and what it tells them.

Everything is called from the event loop, one call at a time, and must come back at once.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from kvikk.router.records import Decision, ReplicaView, RoutedRequest


class Asked:
    """A request as it came: ``json`` is its parsed body, None where that is no JSON object.

    ``headers`` have names in lower case. ``salt`` tells tenants apart who may share nothing; it is
    what a kvikk server takes for the same key.
    """

    __slots__ = ("body", "headers", "id", "json", "model", "path", "salt", "tenant")

    def __init__(
        self,
        request_id: str,
        path: str,
        model: str,
        tenant: str,
        salt: bytes,
        body: bytes,
        json: dict[str, Any] | None,
        headers: Mapping[bytes, bytes],
    ) -> None:
        self.id: Final = request_id
        self.path: Final = path
        self.model: Final = model
        self.tenant: Final = tenant
        self.salt: Final = salt
        self.body: Final = body
        self.json: Final = json
        self.headers: Final = headers

    def named(self, request_id: str) -> "Asked":
        """The same under another id."""
        return Asked(
            request_id,
            self.path,
            self.model,
            self.tenant,
            self.salt,
            self.body,
            self.json,
            self.headers,
        )


class Reported(NamedTuple):
    """What a replica said a request used, in tokens; ``cached_tokens`` None if it was silent."""

    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int


class Outcome:
    """How an attempt at a replica ended.

    ``status`` is the replica's, 0 if it gave none; ``error`` a word or two where it failed ("" if
    it did not; "client gone" is no failure of the replica's). Times are seconds since it was sent.
    """

    __slots__ = ("error", "first_byte_s", "reported", "status", "whole_s")

    def __init__(
        self,
        status: int,
        error: str,
        first_byte_s: float | None,
        whole_s: float,
        reported: Reported | None,
    ) -> None:
        self.status: Final = status
        self.error: Final = error
        self.first_byte_s: Final = first_byte_s
        self.whole_s: Final = whole_s
        self.reported: Final = reported


class Placement(Protocol):
    """Decides, and learns from what it decided and what came of it."""

    def joined(self, view: ReplicaView, url: str) -> None:
        """A replica is in the fleet from now on; its slot is its own until it has left."""
        ...

    def left(self, slot: int) -> None:
        """The replica of ``slot`` is gone for good; another may get the slot."""
        ...

    def forgotten(self, slot: int, because: str) -> None:
        """What the replica held is gone: it stopped, or it is another process than before."""
        ...

    def foresee(
        self, asked: Asked, replicas: Sequence[ReplicaView], tried: Collection[int]
    ) -> ReplicaView | None:
        """Where ``read`` and ``decide``, called next, will send it; None if they must say first."""
        ...

    def read(self, asked: Asked) -> RoutedRequest:
        """What the request is to routing, and what the replicas hold of it now."""
        ...

    def decide(
        self, request: RoutedRequest, replicas: Sequence[ReplicaView], tried: Collection[int]
    ) -> Decision:
        """Choose, and learn at once what the chosen one will hold.

        ``tried`` are slots that failed this request. BusyError if nobody is eligible.
        """
        ...

    def answered(self, request: RoutedRequest, decision: Decision, outcome: Outcome) -> None:
        """An attempt has ended."""
        ...

    def metrics(self) -> str:
        """Lines for ``/metrics``, in Prometheus' text format; may be empty."""
        ...

    def page(self, path: str) -> tuple[str, bytes] | None:
        """Media type and body of a page of its own at ``path``, if it has one there."""
        ...

    async def run(self) -> None:
        """Whatever it does beside requests, until it is cancelled."""
        ...
