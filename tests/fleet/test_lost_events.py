"""An engine's own list of its blocks against what a router made of events, whichever are lost."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from kvikk.cache.events import BlockStored, Event
from kvikk.cache.keys import KeyChain
from kvikk.engine.engine import Engine
from kvikk.router.placement.aware import AwarePlacement
from kvikk.router.placement.options import EventSource, PlacementOptions
from kvikk.router.placement.prompts import told_root
from kvikk.router.records import ReplicaView
from kvikk.server.kv_events import KvEventPublisher
from tests.engine.driver import make_engine, request, run
from tests.fleet.wires import lossy_wire

SIZE = 4
URL = "http://engine:8000"


class Truth:
    """What the engine's pool has in its index; events only say which tokens a key stands for."""

    def __init__(self, engine: Engine) -> None:
        self._cache = engine.cache
        self._tokens: dict[bytes, tuple[int, ...]] = {}

    def hear(self, event: Event, tokens: Sequence[int]) -> None:
        if isinstance(event, BlockStored):
            before = () if event.parent_key is None else self._tokens[event.parent_key]
            for number, key in enumerate(event.keys):
                before = (*before, *tokens[number * SIZE : (number + 1) * SIZE])
                self._tokens[key] = before

    def prefixes(self) -> set[tuple[int, ...]]:
        (held,) = self._cache.held(list(self._tokens))
        return {self._tokens[key] for key in held}

    def named(self) -> set[tuple[int, ...]]:
        return set(self._tokens.values())


@contextmanager
def published(engine: Engine, truth: Truth) -> Iterator[KvEventPublisher]:
    publisher = KvEventPublisher("tcp://127.0.0.1:*", "tcp://127.0.0.1:*")
    assert engine.books is not None
    publisher.follow(engine.books)
    tell = engine.books.on_event
    assert tell is not None

    def hear(event: Event, tokens: Sequence[int], salt: bytes, adapter: str) -> None:
        truth.hear(event, tokens)
        tell(event, tokens, salt, adapter)

    engine.books.on_event = hear
    try:
        yield publisher
    finally:
        publisher.close()


async def follow(
    prompts: Sequence[Sequence[int]],
    resets: frozenset[int],
    lost: frozenset[int],
    can_repeat: bool,
) -> None:
    engine, _ = make_engine(num_blocks=(8,), block_size=SIZE, max_context_tokens=28)
    truth = Truth(engine)
    is_losing, places = False, count()  # ``lost`` counts from when it begins to lose
    with (
        published(engine, truth) as publisher,
        lossy_wire(publisher.endpoint, lambda _: is_losing and next(places) in lost) as wire,
    ):
        source = EventSource(wire.endpoint, publisher.replay_endpoint if can_repeat else None)
        placement = AwarePlacement(PlacementOptions(events={URL: source}))
        placement.joined(ReplicaView("engine", 0), URL)
        task = asyncio.create_task(placement.run())
        try:
            # First a few that are not lost, until all is connected.
            for number in count():
                run(engine, [request(f"first {number}", [4, number % 7, 1, 1, 2], 1)])
                await asyncio.sleep(0.02)
                if is_true(placement, truth, (4, number % 7, 1, 1), can_repeat):
                    break
            is_losing = True
            for number, prompt in enumerate(prompts):
                run(engine, [request(str(number), prompt, 1)])
                if number in resets:
                    engine.reset_cache()
                await asyncio.sleep(0.003)  # a batch of its own
            # From here on nothing is lost, and something comes: who missed the last then notices.
            is_losing = False
            deadline_s = time.monotonic() + 120
            for more in count():
                last = (3, more % 7, 1, 1)
                run(engine, [request(f"more {more}", [*last, 2], 1)])
                for _ in range(100):
                    await asyncio.sleep(0.01)
                    if is_true(placement, truth, last, can_repeat):
                        return
                assert time.monotonic() < deadline_s
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def is_true(placement: AwarePlacement, truth: Truth, last: tuple[int, ...], is_whole: bool) -> bool:
    """Whether the index has just what the engine has, block by block, and has heard the ``last``;

    of a sender that cannot repeat itself, whether it has nothing that the engine has not.
    """
    held, root = truth.prefixes(), told_root(SIZE, "", "")
    believed = {
        prefix
        for prefix in truth.named()
        if placement.index.holders(KeyChain(root, SIZE, prefix).keys[-1])
    }
    if len(placement.index) != len(believed) or last not in believed:
        return False
    return believed == held if is_whole else believed <= held


@settings(max_examples=20, deadline=None)
@given(
    prompts=st.lists(
        st.lists(st.sampled_from([1, 2]), min_size=8, max_size=24), min_size=8, max_size=12
    ),
    resets=st.frozensets(st.integers(0, 11), max_size=2),
    lost=st.frozensets(st.integers(0, 11), min_size=1, max_size=8),
    can_repeat=st.booleans(),
)
def test_the_index_is_the_engine_s_own_list_whichever_events_were_lost(
    prompts: list[list[int]], resets: frozenset[int], lost: frozenset[int], can_repeat: bool
) -> None:
    asyncio.run(follow(prompts, resets, lost, can_repeat))
