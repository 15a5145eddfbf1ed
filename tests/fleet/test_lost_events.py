"""An engine's own list of its blocks against what a router made of events, whichever are lost."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import zmq
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
from kvikk.wire.kv_events import decode_sequence
from tests.engine.driver import make_engine, request, run

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


class Wire:
    """Passes on what is published, but for batches whose numbers are ``lost``."""

    def __init__(self, endpoint: str, lost: frozenset[int]) -> None:
        self.lost = lost
        self.dropped = 0
        self._context = zmq.Context()
        self._heard = self._context.socket(zmq.SUB)
        self._heard.setsockopt(zmq.SUBSCRIBE, b"")
        self._heard.connect(endpoint)
        self._told = self._context.socket(zmq.PUB)
        self._told.bind("tcp://127.0.0.1:*")
        self.endpoint = self._told.getsockopt_string(zmq.LAST_ENDPOINT)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def _run(self) -> None:
        while not self._ended.is_set():
            if self._heard.poll(10):
                frames = self._heard.recv_multipart()
                if decode_sequence(frames[1]) in self.lost:
                    self.dropped += 1
                else:
                    self._told.send_multipart(frames)


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
    engine, _ = make_engine(num_blocks=(12,), block_size=SIZE, max_context_tokens=32)
    truth = Truth(engine)
    with published(engine, truth) as publisher:
        wire = Wire(publisher.endpoint, lost)
        source = EventSource(wire.endpoint, publisher.replay_endpoint if can_repeat else None)
        placement = AwarePlacement(PlacementOptions(events={URL: source}))
        placement.joined(ReplicaView("engine", 0), URL)
        task = asyncio.create_task(placement.run())
        try:
            for number, prompt in enumerate(prompts):
                run(engine, [request(str(number), prompt, 1)])
                if number in resets:
                    engine.reset_cache()
                await asyncio.sleep(0)
            # From here on nothing is lost, and something comes: who missed the last then notices.
            wire.lost = frozenset()
            deadline_s = time.monotonic() + 30
            more = 0
            while not is_true(placement, truth):
                assert time.monotonic() < deadline_s
                if more % 20 == 0:
                    if not can_repeat:  # what was missed is missed until the engine says all anew
                        engine.reset_cache()
                    run(engine, [request(f"more {more}", [3, more % 7, *[1] * 8], 1)])
                more += 1
                await asyncio.sleep(0.01)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            wire.close()


def is_true(placement: AwarePlacement, truth: Truth) -> bool:
    """Whether the index has just what the engine has, block by block."""
    held, index = truth.prefixes(), placement.index
    if len(index) != len(held) or not held:
        return False
    root = told_root(SIZE, "", "")
    return all(
        (index.holders(KeyChain(root, SIZE, prefix).keys[-1]) == 1) == (prefix in held)
        for prefix in truth.named()
    )


@settings(max_examples=12, deadline=None)
@given(
    prompts=st.lists(
        st.lists(st.sampled_from([1, 2]), min_size=1, max_size=28), min_size=1, max_size=12
    ),
    resets=st.frozensets(st.integers(0, 11), max_size=2),
    lost=st.frozensets(st.integers(0, 40)),
    can_repeat=st.booleans(),
)
def test_the_index_is_the_engine_s_own_list_whatever_events_were_lost(
    prompts: list[list[int]], resets: frozenset[int], lost: frozenset[int], can_repeat: bool
) -> None:
    asyncio.run(follow(prompts, resets, lost, can_repeat))
