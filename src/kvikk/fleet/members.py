"""The replicas that Serve runs, in the words of the router's placement.

Serve knows replicas by id and asks for an order; the placement knows slots, load and who holds
what, and decides. Everything here belongs to one event loop, that of Serve's request router.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kvikk.errors import BusyError
from kvikk.fleet.attempts import Attempt
from kvikk.router.deciding import decide
from kvikk.router.load import Load
from kvikk.router.placement.aware import AwarePlacement
from kvikk.router.placement.options import EventSource, PlacementOptions
from kvikk.router.proxy.placement import Outcome
from kvikk.router.records import Decision, ReplicaView

Result = TypeVar("Result")

# Serve is told an order of so many; of the rest it takes the one with the fewest requests.
_RANKED = 3
_TAKEN_BACK = Outcome(0, "taken back", None, 0.0, None)


@dataclass(frozen=True)
class Member:
    """A replica by its own word: ``node`` it runs on, ``epoch`` of its process, where it tells."""

    id: str
    node: str = ""
    epoch: str = ""
    pid: int = 0
    capacity_tokens: int | None = None
    events: str | None = None
    replay: str | None = None

    @classmethod
    def from_metadata(cls, replica_id: str, metadata: Mapping[str, Any]) -> "Member":
        """From what ``Replica.record_replica_metadata`` returned."""
        known = {name: metadata[name] for name in cls.__dataclass_fields__ if name in metadata}
        return cls(**(known | {"id": replica_id}))

    def to_metadata(self) -> dict[str, Any]:
        """As Serve carries it."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


class Members:
    """Who is in the fleet, and who gets the next request.

    ``placement`` is the router's: the same policy, the same index, the same books.
    """

    def __init__(self, options: PlacementOptions) -> None:
        self._sources: dict[str, EventSource] = {}
        self.placement = AwarePlacement(replace(options, events=self._sources))
        self.loop: asyncio.AbstractEventLoop | None = None
        self.members: dict[str, Member] = {}
        self.views: dict[str, ReplicaView] = {}
        self._loads: dict[str, Load] = {}

    def update(self, found: Sequence[Member]) -> None:
        """These are there now; what was known of others goes."""
        ids = {member.id for member in found}
        for gone in [name for name in self.views if name not in ids]:
            self.remove(gone)
        for member in found:
            if member.id not in self.views:
                self._join(member)

    def remove(self, replica_id: str) -> None:
        """This one is gone."""
        view = self.views.pop(replica_id, None)
        if view is None:
            return
        view.eligible = False
        del self.members[replica_id]
        self._sources.pop(_url(replica_id), None)
        self.placement.left(view.slot)

    def order(self, attempt: Attempt, candidates: Collection[str]) -> list[list[str]]:
        """Replicas in the order in which they should have the attempt, in ranks.

        The choice counts as load from now on, until ``settle`` or another call of this.
        """
        self._take_back(attempt)
        known = [name for name in candidates if name in self.views]
        if attempt.has_prompt and attempt.routed is None:
            attempt.routed = self.placement.read(attempt.asked)
        if attempt.wanted:
            return [[attempt.wanted]] if attempt.wanted in known else []
        if attempt.ended or attempt.routed is None or not known:
            return [known]
        for name, view in self.views.items():
            view.eligible = name in candidates
        views = list(self.views.values())
        tried = {self.views[name].slot for name in attempt.tried if name in self.views}
        try:
            decision = self.placement.decide(attempt.routed, views, tried)
        except BusyError:  # all failed it: again from the beginning
            tried = set()
            decision = self.placement.decide(attempt.routed, views, tried)
        self._take(attempt, decision)
        order = [decision.replica.id]
        for _ in range(min(_RANKED, len(known)) - 1):
            tried |= {self.views[order[-1]].slot}
            try:
                nearest = decide(self.placement.policy, attempt.routed, views, tried)
            except BusyError:
                break
            order.append(nearest.replica.id)
        rest = [name for name in known if name not in order and name not in attempt.tried]
        return [*([name] for name in order), *([rest] if rest else [])]

    def taken(self, attempt: Attempt, replica_id: str) -> None:
        """Serve gave the attempt to this one: as decided, or because the best were full."""
        decision = attempt.decision
        if attempt.routed is None or attempt.ended:
            return
        if decision is not None and decision.replica.id == replica_id:
            return
        self._take_back(attempt)
        view = self.views.get(replica_id)
        if view is None:
            return
        others = {one.slot for one in self.views.values() if one is not view}
        view.eligible = True
        self._take(
            attempt, self.placement.decide(attempt.routed, list(self.views.values()), others)
        )

    def first_token(self, attempt: Attempt) -> None:
        """The attempt's prompt has been computed."""
        load = self._loads.get(attempt.id)
        if load is not None:
            load.first_token()

    def settle(self, attempt: Attempt, outcome: Outcome) -> None:
        """The attempt has ended; it is no load any more."""
        attempt.ended = True
        load = self._loads.pop(attempt.id, None)
        if load is None:
            return
        load.release()
        assert attempt.routed is not None
        assert attempt.decision is not None
        self.placement.answered(attempt.routed, attempt.decision, outcome)

    def post(self, call: Callable[..., object], *arguments: Any) -> None:
        """Have a method of this run where it belongs, soon; called from any thread."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(call, *arguments)

    async def ask(self, call: Callable[..., Result], *arguments: Any) -> Result:
        """What a method of this returns; awaited in any loop."""
        assert self.loop is not None

        async def answer() -> Result:
            return call(*arguments)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(answer(), self.loop))

    def _join(self, member: Member) -> None:
        used = {view.slot for view in self.views.values()}
        slot = next(slot for slot in range(len(used) + 1) if slot not in used)
        view = ReplicaView(member.id, slot, capacity_tokens=member.capacity_tokens)
        if member.events is not None:
            self._sources[_url(member.id)] = EventSource(member.events, member.replay)
        self.members[member.id] = member
        self.views[member.id] = view
        self.placement.joined(view, _url(member.id))

    def _take(self, attempt: Attempt, decision: Decision) -> None:
        assert attempt.routed is not None
        attempt.decision = decision
        self._loads[attempt.id] = Load(
            decision.replica, attempt.routed.prompt_tokens, decision.hit_tokens
        )

    def _take_back(self, attempt: Attempt) -> None:
        """What was decided before is not so."""
        load = self._loads.pop(attempt.id, None)
        if load is None:
            return
        load.release()
        assert attempt.routed is not None
        assert attempt.decision is not None
        self.placement.answered(attempt.routed, attempt.decision, _TAKEN_BACK)
        attempt.decision = None


def _url(replica_id: str) -> str:
    """A name for the placement, which knows replicas by their addresses."""
    return f"serve://{replica_id}"


# Serve makes a request router for each process that holds a handle, and shows it to nobody; whoever
# shares the process finds its members here, by the application's name.
_OPEN: dict[str, Members] = {}


def open_members(application: str, options: PlacementOptions) -> Members:
    """The members of an application in this process, made by its request router."""
    return _OPEN.setdefault(application, Members(options))


def find_members(application: str) -> Members | None:
    """The members of an application in this process; None before its router was made."""
    return _OPEN.get(application)
