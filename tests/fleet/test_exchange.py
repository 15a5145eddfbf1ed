"""One request through the ingress with a client that leaves, and replicas that fail, at any step.

Serve's handle is acted here: it chooses by the fleet's own members, and its replicas settle into
outboxes as real ones do. What the ingress makes of it is the ingress's own code.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError
from ray.serve.exceptions import BackPressureError

from kvikk.fleet.attempts import Attempt, Frame, Head, Tail
from kvikk.fleet.ingress import Ingress
from kvikk.fleet.ledger.outbox import Outbox
from kvikk.fleet.ledger.records import LEFT, LOST, REFUSED, FleetTotals, Settled
from kvikk.fleet.members import Member, open_members
from kvikk.fleet.options import FleetOptions
from kvikk.router.placement.options import PlacementOptions
from kvikk.wire.ledger import LedgerSpan

PROMPT = list(range(1000, 1100))
_names = count()


@dataclass
class Replica:
    outbox: Outbox
    is_alive: bool = True


class Handle:
    """``script`` says what becomes of each attempt: answers, is busy, dies before or after its
    first byte, cannot be reached, or is one too many.
    """

    def __init__(self, script: list[str]) -> None:
        self.script: Iterator[str] = iter(script)
        self.fate = ""
        self.replicas = {name: Replica(Outbox(name)) for name in "abc"}
        self.tasks: list[asyncio.Task[None]] = []
        self.attempts = 0

    def options(self, **_: Any) -> "Handle":
        return self

    @asynccontextmanager
    async def choose_replica(self, attempt: Attempt) -> AsyncIterator[Any]:
        self.fate = next(self.script)
        await asyncio.sleep(0)
        if self.fate == "too many":
            raise BackPressureError(num_queued_requests=1, max_queued_requests=1)
        alive = [name for name, replica in self.replicas.items() if replica.is_alive]
        order = self.members.order(attempt, alive)
        await asyncio.sleep(0)
        if self.fate == "unreachable":
            raise ActorDiedError
        # Sometimes not the best, as where that is full.
        chosen = order[-1][0] if self.fate == "full" else order[0][0]
        yield SimpleNamespace(replica_id=chosen)
        await asyncio.sleep(0)

    def dispatch(self, chosen: Any, attempt: str, request: Any, prompt_tokens: int) -> "Frames":
        self.attempts += 1
        return Frames(self, self.replicas[chosen.replica_id], attempt, prompt_tokens)

    def broadcast(self, method: str, *arguments: Any) -> Any:
        async def results_async(**_: Any) -> list[Any]:
            return []

        return SimpleNamespace(results_async=results_async)

    @property
    def members(self) -> Any:
        return self.ingress.members


class Frames:
    """What a replica answers to one attempt; it settles what was cancelled in its own time."""

    def __init__(self, handle: Handle, replica: Replica, attempt: str, tokens: int) -> None:
        self.handle, self.replica, self.attempt, self.tokens = handle, replica, attempt, tokens
        self.is_settled = False
        self.answer = self.frames(handle.fate)
        replica.outbox.began(attempt)

    def __aiter__(self) -> AsyncIterator[Frame]:
        return self.answer

    async def frames(self, fate: str) -> AsyncIterator[Frame]:
        await asyncio.sleep(0)
        if fate == "dies":
            self.die()
        status = {"busy": 429, "junk": 400}.get(fate, 200)
        yield Head(status, ())
        await asyncio.sleep(0)
        yield b"data: {}\n\n"
        await asyncio.sleep(0)
        if fate == "dies late":
            self.die()
        yield b"data: {"
        if fate == "breaks off":
            self.die()
        yield b"}\n\n"
        await asyncio.sleep(0)
        yield b"data: [DONE]\n\n"
        await asyncio.sleep(0)
        spans = (LedgerSpan(0, 64, "hit.device"), LedgerSpan(64, self.tokens, "new"))
        record = Settled(self.attempt, self.tokens, spans)
        if status == 429:
            record = Settled.whole(self.attempt, self.tokens, REFUSED)
        elif status == 400:
            record = Settled.empty(self.attempt)
        self.is_settled = True
        yield Tail(self.replica.outbox.settled(record), None)

    def die(self) -> None:
        self.replica.is_alive = False
        raise ActorDiedError

    def cancel(self) -> None:
        async def notice() -> None:
            await asyncio.sleep(0)
            if self.replica.is_alive and not self.is_settled:
                self.replica.outbox.settled(Settled.whole(self.attempt, self.tokens, LEFT))

        self.handle.tasks.append(asyncio.create_task(notice()))


@dataclass(frozen=True)
class Outcome:
    totals: FleetTotals
    attempts: int
    status: int
    load: int
    answers: int  # that the router knows of
    is_whole: bool  # the client was sent all of its answer


async def exchange(script: list[str], leave_after: int | None) -> Outcome:
    """One request; the client leaves after so many turns of the event loop."""
    handle = Handle(script)
    name = f"test {next(_names)}"
    members = open_members(name, PlacementOptions())
    members.loop = asyncio.get_running_loop()
    members.update([Member(one) for one in handle.replicas])
    ingress = handle.ingress = Ingress(FleetOptions(), name, handle)
    body = json.dumps({"model": "m", "prompt": PROMPT, "stream": True}).encode()
    is_read, is_whole, status = False, False, 0

    async def receive() -> dict[str, Any]:
        nonlocal is_read
        if not is_read:
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}
        for _ in range(10_000 if leave_after is None else leave_after):
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status, is_whole
        status = message.get("status", status)
        is_whole |= status == 200 and b"[DONE]" in message.get("body", b"")
        await asyncio.sleep(0)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "headers": [],
        "query_string": b"",
    }
    try:
        await ingress(scope, receive, send)
    except ConnectionError:
        assert "breaks off" in script
    for _ in range(10):  # calls to another loop, and what goes on by itself
        await asyncio.sleep(0)
    for _ in range(3):
        ask = ingress.ledger.ask()
        for replica in handle.replicas.values():
            if replica.is_alive:
                ingress.ledger.receive(replica.outbox.collect(ask))
        ingress.ledger.fleet({one for one, replica in handle.replicas.items() if replica.is_alive})
    load = sum(
        view.running_requests + view.running_tokens + round(view.waiting_tokens)
        for view in members.views.values()
    )
    _, page = members.placement.page("/v1/kvikk/fleet")
    answers = sum(replica["answers"] for replica in json.loads(page)["replicas"])
    return Outcome(ingress.ledger.totals(), handle.attempts, status, load, answers, is_whole)


SCRIPTS = [
    ["answers"],
    ["full"],
    ["junk"],
    ["busy", "answers"],
    ["busy", "busy", "busy"],
    ["dies", "answers"],
    ["dies", "dies", "dies"],
    ["dies", "busy", "answers"],
    ["dies", "too many"],
    ["busy", "unreachable"],
    ["dies late"],
    ["breaks off"],
    ["too many"],
    ["unreachable"],
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: ", ".join(script))
def test_a_request_counts_once_whenever_its_client_leaves_and_whatever_fails(
    script: list[str],
) -> None:
    for leave_after in [None, *range(60)]:
        outcome = asyncio.run(exchange(list(script), leave_after))
        totals = outcome.totals
        assert (totals.requests, totals.open_attempts) == (1, 0), leave_after
        assert totals.prompt_tokens == len(PROMPT) + totals.corrected_tokens, leave_after
        # Each attempt that was sent is there, and no other but one that could not be.
        made = totals.requests + totals.superseded_attempts
        assert outcome.attempts <= made <= outcome.attempts + 1, leave_after
        assert outcome.load == 0, leave_after
        # A client may close as soon as it has all, and the router counts it.
        assert outcome.answers == outcome.is_whole, leave_after


# The second replica computes what the first was sent, and is believed to hold: 96 of 100 tokens.
AT_THE_SECOND = {"hit.device": 64, "elsewhere": 32, "new": 4}


@pytest.mark.parametrize(
    ("script", "status", "by_cause", "superseded"),
    [
        (["answers"], 200, {"hit.device": 64, "new": 36}, {}),
        (["junk"], 400, {}, {}),
        (["busy", "answers"], 200, AT_THE_SECOND, {REFUSED: 100}),
        (["busy", "busy", "busy"], 429, {REFUSED: 100}, {REFUSED: 200}),
        (["dies", "answers"], 200, AT_THE_SECOND, {LOST: 100}),
        (["dies", "dies", "dies"], 502, {LOST: 100}, {LOST: 200}),
        (["dies", "unreachable"], 503, {REFUSED: 100}, {LOST: 100}),
        (["dies late"], 200, {LOST: 100}, {}),
        (["breaks off"], 200, {LOST: 100}, {}),
    ],
)
def test_what_became_of_a_request_is_booked_for_what_it_was(
    script: list[str], status: int, by_cause: dict[str, int], superseded: dict[str, int]
) -> None:
    outcome = asyncio.run(exchange(script, None))
    assert outcome.status == status
    assert outcome.totals.by_cause == by_cause
    assert outcome.totals.superseded_by_cause == superseded
