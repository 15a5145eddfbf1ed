"""The Serve request router and `kvikk route` are asked the same things, and answer alike."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, RequestMetadata
from ray.serve.request_router import PendingRequest, ReplicaID, RunningReplica

from kvikk.cache.keys import KeyChain, root_key
from kvikk.fleet.attempts import Attempt
from kvikk.fleet.members import Member, Members, find_members
from kvikk.fleet.routing import PolicyRouter
from kvikk.router.deciding import decide
from kvikk.router.placement.aware import AwarePlacement
from kvikk.router.placement.options import EventSource, PlacementOptions
from kvikk.router.policies import POLICIES
from kvikk.router.proxy.fleet import Fleet
from kvikk.router.proxy.origin import parse_origin
from kvikk.router.proxy.placement import Asked, Outcome, Reported
from kvikk.router.proxy.replica import ReplicaLoad
from kvikk.router.records import Decision, RoutedRequest
from kvikk.wire.kv_events import KvBatch, KvRemoved, KvStored

BLOCK = 16
HOSTS = [f"10.0.0.{number}" for number in range(1, 5)]
_applications = count()


@dataclass
class Ask:
    """A request of one of a few families of prompts, perhaps of a named session."""

    family: int
    num_tokens: int
    session: str
    is_stream: bool

    def asked(self, number: int) -> Asked:
        tokens = [1 + (self.family * 131 + place * 7) % 997 for place in range(self.num_tokens)]
        body: dict[str, Any] = {"model": "m", "prompt": tokens, "stream": self.is_stream}
        if self.session:
            body["prompt_cache_key"] = self.session
        return Asked(str(number), "/v1/completions", "m", "default", b"", b"", body, {})


@dataclass
class End:
    """What becomes of one of the requests on their way: its first token, its end, its failure."""

    which: int
    how: str
    cached_blocks: int
    seconds: float


@dataclass
class Tell:
    """A replica says that it stored so much of a family's prompt, or dropped all of it."""

    host: int
    family: int
    num_blocks: int
    is_gone: bool


@dataclass
class Change:
    """A replica leaves, or comes back as another process."""

    host: int


asks = st.builds(
    Ask, st.integers(0, 3), st.integers(1, 400), st.sampled_from(["", "", "a", "b"]), st.booleans()
)
ends = st.builds(
    End,
    st.integers(0, 20),
    st.sampled_from(["token", "end", "fail"]),
    st.integers(0, 10),
    st.floats(0.001, 1),
)
tells = st.builds(Tell, st.integers(0, 3), st.integers(0, 3), st.integers(1, 20), st.booleans())
steps = st.lists(
    st.one_of(asks, asks, ends, tells, st.builds(Change, st.integers(0, 3))),
    min_size=6,
    max_size=40,
)


@dataclass
class Routed:
    """A request on its way through the router."""

    routed: RoutedRequest
    decision: Decision
    load: ReplicaLoad
    tried: set[int] = field(default_factory=set)


class Route:
    """As `kvikk route` works: its fleet, its placement, its loads."""

    def __init__(self, policy: str) -> None:
        events = {f"http://{host}:80": EventSource("ipc://nobody", None) for host in HOSTS}
        self.placement = AwarePlacement(PlacementOptions(policy=policy, events=events))
        self.fleet = Fleet(self.placement, None, 1.0, 0)

    def join(self, host: str) -> None:
        replica = self.fleet.add(parse_origin(f"http://{host}"), "command")
        self.fleet.set_models(replica, frozenset({"m"}))
        replica.is_healthy = True
        self.fleet.update(replica)

    def leave(self, host: str) -> None:
        found = self.fleet.find(f"{host}:80")
        assert found is not None
        self.fleet.remove(found)

    def ask(self, asked: Asked) -> Routed:
        routed = self.placement.read(asked)
        decision = self.placement.decide(routed, self.fleet.serving("m"), set())
        replica = self.fleet[decision.replica.slot]
        return Routed(
            routed, decision, ReplicaLoad(replica, routed.prompt_tokens, decision.hit_tokens)
        )

    def end(self, one: Routed, outcome: Outcome) -> None:
        one.load.release()
        if any(replica.view is one.decision.replica for replica in self.fleet):
            self.placement.answered(one.routed, one.decision, outcome)


class Running(RunningReplica):
    """A replica as Serve tells a request router of it, without the actor."""

    def __init__(self, name: str) -> None:
        self._id = ReplicaID(name, DeploymentID("engines", "app"))

    replica_id = property(lambda self: self._id)
    max_ongoing_requests = property(lambda self: 100)
    replica_metadata = property(
        lambda self: Member(self._id.unique_id, events="ipc://nobody").to_metadata()
    )

    async def get_queue_len(self, *, deadline_s: float) -> int:
        return 0


class Served:
    """As Ray Serve works: it says which replicas run, and asks its request router for ranks."""

    def __init__(self, policy: str) -> None:
        name = f"application-{next(_applications)}"
        self.router = PolicyRouter(DeploymentID("engines", name), DeploymentHandleSource.REPLICA)
        self.router.initialize_state(policy=policy, model="no such model")
        members = find_members(name)
        assert members is not None
        self.members: Members = members

    def run(self, hosts: Sequence[str]) -> None:
        self.router.update_replicas([Running(f"{host}:80") for host in hosts])

    async def ask(self, asked: Asked) -> tuple[Attempt, list[list[str]]]:
        attempt = Attempt(asked.id, asked)
        pending = PendingRequest([attempt], {}, RequestMetadata(asked.id, asked.id))
        candidates = list(self.router.curr_replicas.values())
        ranks = await self.router.choose_replicas(candidates, pending)
        self.members.taken(attempt, ranks[0][0].replica_id.unique_id)
        return attempt, [[one.replica_id.unique_id for one in rank] for rank in ranks]


def batch(tell: Tell) -> KvBatch:
    tokens = Ask(tell.family, tell.num_blocks * BLOCK, "", False).asked(0).json["prompt"]
    root = root_key(model=b"engine", block_size=BLOCK, kv_dtype="", numerics="")
    keys = tuple(KeyChain(root, BLOCK, tokens).keys)
    if tell.is_gone:
        return KvBatch(0.0, (KvRemoved(keys, "CPU", 0),))
    return KvBatch(0.0, (KvStored(keys, None, tokens, BLOCK, medium="CPU", group=0),))


async def play(policy: str, script: Sequence[Ask | End | Tell | Change]) -> None:
    route, served = Route(policy), Served(policy)
    there = list(HOSTS[:3])
    for host in there:
        route.join(host)
    served.run(there)
    on_their_way: list[tuple[Routed, Attempt]] = []
    for number, step in enumerate(script):
        if isinstance(step, Ask):
            one = route.ask(step.asked(number))
            attempt, ranks = await served.ask(step.asked(number))
            assert attempt.decision is not None
            assert attempt.decision.header == one.decision.header
            assert ranks[0] == [one.decision.replica.id]
            if len(there) > 1:  # whom the router would ask next
                tried = {one.decision.replica.slot}
                views = route.fleet.serving("m")
                nearest = decide(route.placement.policy, one.routed, views, tried)
                assert ranks[1] == [nearest.replica.id]
            assert sorted(name for rank in ranks for name in rank) == sorted(
                f"{host}:80" for host in there
            )
            on_their_way.append((one, attempt))
        elif isinstance(step, End) and on_their_way:
            one, attempt = on_their_way[step.which % len(on_their_way)]
            if step.how == "token":
                one.load.first_token()
                served.members.first_token(attempt)
                continue
            on_their_way.remove((one, attempt))
            tokens = one.routed.prompt_tokens
            reported = Reported(tokens, min(step.cached_blocks * BLOCK, tokens - 1), 1)
            outcome = Outcome(200, "", step.seconds, step.seconds, reported)
            if step.how == "fail":
                outcome = Outcome(0, "broken", None, step.seconds, None)
            route.end(one, outcome)
            served.members.settle(attempt, outcome)
        elif isinstance(step, Tell) and HOSTS[step.host] in there:
            name = f"{HOSTS[step.host]}:80"
            for placement in (route.placement, served.members.placement):
                holder = next(one for one in placement.holders.values() if one.view.id == name)
                holder.hear(batch(step))
        elif isinstance(step, Change):
            host = HOSTS[step.host]
            if host in there and len(there) > 1:
                there.remove(host)
                route.leave(host)
            elif host not in there:
                there.append(host)
                route.join(host)
            served.run(there)
    for one, attempt in on_their_way:
        route.end(one, Outcome(0, "client gone", None, 1.0, None))
        served.members.settle(attempt, Outcome(0, "client gone", None, 1.0, None))
    for placement in (route.placement, served.members.placement):
        for holder in placement.holders.values():
            assert (holder.view.running_requests, holder.view.running_tokens) == (0, 0)
            assert abs(holder.view.waiting_tokens) < 1e-6
    assert served.members.placement.books.tokens == route.placement.books.tokens


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(POLICIES)), steps)
def test_the_serve_request_router_and_kvikk_route_choose_alike(
    policy: str, script: list[Ask | End | Tell | Change]
) -> None:
    asyncio.run(play(policy, script))
