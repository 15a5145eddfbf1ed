"""The replicas there are: who joins, who leaves, who serves which model."""

import asyncio
import ssl
import time
from collections.abc import Callable, Iterator, Sequence

from kvikk.errors import RequestError
from kvikk.router.proxy.origin import Origin
from kvikk.router.proxy.placement import Placement
from kvikk.router.proxy.pool import Pool
from kvikk.router.proxy.replica import Replica
from kvikk.router.records import ReplicaView


class Fleet:
    """All replicas, by slot. ``on_change`` is called when one may have become eligible."""

    def __init__(
        self,
        placement: Placement,
        tls: ssl.SSLContext | None,
        connect_timeout_s: float,
        limit: int,
    ) -> None:
        self._placement = placement
        self._tls = tls
        self._connect_timeout_s = connect_timeout_s
        self._limit = limit
        self._replicas: dict[int, Replica] = {}
        self._views: dict[str, list[ReplicaView]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self.on_change: Callable[[], None] = lambda: None
        self.on_join: Callable[[Replica], None] = lambda replica: None

    def __iter__(self) -> Iterator[Replica]:
        return iter(tuple(self._replicas.values()))

    def __len__(self) -> int:
        return len(self._replicas)

    def __getitem__(self, slot: int) -> Replica:
        return self._replicas[slot]

    def find(self, name: str) -> Replica | None:
        """The replica of this id or URL, if there is one."""
        return next((one for one in self if name in (one.id, one.pool.origin.url)), None)

    def add(self, origin: Origin, source: str) -> Replica:
        """Take a replica in; it is used once a check has found it well.

        One that is leaving comes back. Raises RequestError if it is there already.
        """
        known = self.find(origin.url)
        if known is not None:
            if not known.is_draining:
                raise RequestError(f"{origin.url} is a replica already", "url")
            self.drain(known, False)
            return known
        slot = next(slot for slot in range(len(self._replicas) + 1) if slot not in self._replicas)
        view = ReplicaView(f"{origin.host}:{origin.port}", slot, eligible=False)
        if self.find(view.id) is not None:  # the same address under another path
            view.id = origin.url.partition("://")[2]
        replica = Replica(
            view, Pool(origin, self._tls, self._connect_timeout_s), self._limit, source
        )
        self._replicas[slot] = replica
        self._placement.joined(view, origin.url)
        self._views.clear()
        self.on_join(replica)
        return replica

    def drain(self, replica: Replica, wanted: bool = True) -> None:
        """Give it no more requests, or give it some again."""
        replica.is_draining = wanted
        self.update(replica)

    def remove(self, replica: Replica) -> None:
        """Let it go at once. Requests it has go on, and no longer count for anything."""
        del self._replicas[replica.view.slot]
        self._views.clear()
        replica.is_draining = True
        replica.is_healthy = False
        replica.update()
        replica.pool.close()
        self._placement.left(replica.view.slot)

    def update(self, replica: Replica) -> None:
        """Something about it has changed that decides whether it may be used."""
        replica.update()
        if replica.view.eligible:
            self.on_change()

    def set_models(self, replica: Replica, models: frozenset[str]) -> None:
        """It has said what it serves."""
        if models != replica.models:
            replica.models = models
            self._views.clear()

    def restarted(self, replica: Replica, because: str) -> None:
        """It is another process than before, or none: nothing is left of what it held."""
        replica.breaker.reset()
        self._placement.forgotten(replica.view.slot, because)

    def serving(self, model: str) -> Sequence[ReplicaView]:
        """Those that serve ``model``, usable or not."""
        views = self._views.get(model)
        if views is None:
            views = [one.view for one in self._replicas.values() if one.serves(model)]
            if views and len(self._views) < 1024:  # callers may make names up
                self._views[model] = views
        return views

    def models(self) -> list[str]:
        """All models that somebody serves, in order."""
        names: set[str] = set()
        for replica in self._replicas.values():
            names |= replica.models or frozenset()
        return sorted(names)

    @property
    def is_known(self) -> bool:
        """Whether any replica has said what it serves."""
        return any(one.models is not None for one in self._replicas.values())

    def leave_later(self, replica: Replica, patience_s: float) -> None:
        """Let it finish what it has, for at most ``patience_s``, and let it go."""
        self.drain(replica)
        task = asyncio.get_running_loop().create_task(self._leave(replica, patience_s))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _leave(self, replica: Replica, patience_s: float) -> None:
        end_s = time.monotonic() + patience_s
        while replica.view.running_requests and time.monotonic() < end_s:
            await asyncio.sleep(0.05)
        if replica.is_draining and self.has(replica):
            self.remove(replica)

    def has(self, replica: Replica) -> bool:
        """Whether this very replica is still one of the fleet."""
        return self._replicas.get(replica.view.slot) is replica
