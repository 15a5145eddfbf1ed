"""The ingress's index is the engines' truth, also behind a wire that loses events."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from kvikk.engine.options import EngineOptions
from kvikk.fleet.attempts import HttpRequest, Tail
from kvikk.fleet.members import Members
from kvikk.fleet.options import FleetOptions
from kvikk.fleet.replica import Replica
from kvikk.router.holdings.subscription import Subscription
from kvikk.router.placement.options import PlacementOptions
from kvikk.router.proxy.placement import Asked
from kvikk.server.options import ServerOptions
from tests.fleet.wires import lossy_wire

BLOCK = 16


def body(number: int, num_tokens: int = 100) -> dict:
    """A prompt that shares a third of itself with every fourth other."""
    tokens = [1 + (number % 4 * 131 + place * 7) % 997 for place in range(num_tokens // 3)]
    tokens += [1 + (number * 57 + place * 11) % 991 for place in range(num_tokens - len(tokens))]
    return {"model": "tiny", "prompt": tokens, "max_tokens": 1}


@asynccontextmanager
async def running_replica(model: Path) -> AsyncIterator[Replica]:
    engine = EngineOptions(
        str(model), "reference", kv_memory_bytes=1 << 20, block_size=BLOCK, threads=1
    )
    replica = Replica(FleetOptions(server=ServerOptions(engine)), "a", "127.0.0.1", "node")
    await replica.start()
    try:
        yield replica
    finally:
        await replica.close()


@asynccontextmanager
async def ingress(*members_there) -> AsyncIterator[Members]:
    members = Members(PlacementOptions())
    members.update(members_there)
    task = asyncio.create_task(members.placement.run())
    try:
        yield members
    finally:
        task.cancel()


async def ask(replica: Replica, number: int) -> None:
    request = HttpRequest(
        "POST", "/v1/completions", b"", (), json.dumps(body(number)).encode(), None
    )
    frames = [frame async for frame in replica.answer(f"me/{number}", request, 100)]
    assert isinstance(frames[-1], Tail)
    assert frames[-1].batch is not None
    assert frames[-1].usage is not None


def held(members: Members) -> int:
    (holder,) = members.placement.holders.values()
    return 0 if holder.told is None else len(holder.told)


def heard(members: Members) -> Subscription:
    (holder,) = members.placement.holders.values()
    assert holder.subscription is not None
    return holder.subscription


def hits(members: Members, number: int) -> int:
    asked = Asked("", "/v1/completions", "tiny", "", b"", b"", body(number), {})
    return members.placement.read(asked).hit_tokens[0]


async def settles(condition: Callable[[], bool]) -> bool:
    """Whether it becomes so by itself."""
    with suppress(TimeoutError):
        async with asyncio.timeout(2):
            while not condition():
                await asyncio.sleep(0.01)
    return condition()


async def follow(model: Path) -> None:
    async with running_replica(model) as replica:

        def blocks() -> int:
            figures = replica.figures()
            return figures["live_blocks"] + figures["cached_blocks"]

        assert replica.member.events is not None
        with lossy_wire(replica.member.events, lambda number: number % 3 == 2) as wire:
            behind = replace(replica.member, events=wire.endpoint)
            async with ingress(behind) as lossy:
                number = 0
                while number < 24 or wire.lost < 5:
                    await ask(replica, number)
                    number += 1
                assert blocks() > 0.9 * replica.figures()["total_blocks"], "nothing was evicted"
                async with ingress(replica.member) as late:
                    # What was lost last is missed with the next that comes.
                    while not await settles(
                        lambda: (
                            held(lossy) == held(late) == blocks()
                            and heard(lossy).batches == heard(late).batches
                        )
                    ):
                        await ask(replica, number)
                        number += 1
                    found = [hits(lossy, one) for one in range(number)]
                    assert found == [hits(late, one) for one in range(number)]
                assert heard(lossy).repaired_gaps == heard(lossy).gaps > 0
                # Of some prompts all that can be reused is held, of others what they share.
                assert (min(found), max(found)) == (32, 96)


def test_an_index_behind_a_lossy_wire_and_one_that_comes_late_are_the_engines_truth(
    tiny_model: Path,
) -> None:
    """Every third batch is lost and asked for again; the other is repeated from the first on."""
    asyncio.run(follow(tiny_model))
