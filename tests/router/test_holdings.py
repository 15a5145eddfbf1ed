"""What replicas hold: told by events, learned from decisions, and held against their reports."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from kvikk.cache.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvikk.cache.keys import KeyChain, root_key
from kvikk.cache.manager import CacheManager
from kvikk.cache.records import GroupSpec
from kvikk.engine.requests import Generation, Request
from kvikk.router.holdings.drift import Drift
from kvikk.router.holdings.index import PrefixIndex
from kvikk.router.holdings.keys import joined
from kvikk.router.holdings.learned import Learned, Promised
from kvikk.router.holdings.subscription import Subscription
from kvikk.router.holdings.told import Told
from kvikk.router.holdings.tree import PrefixTree
from kvikk.router.placement.prompts import told_root
from kvikk.server.kv_events import KvEventPublisher
from kvikk.wire.kv_events import (
    END_OF_REPLAY,
    KvBatch,
    KvCleared,
    KvRemoved,
    KvStored,
    encode_batch,
    encode_sequence,
    published_salt,
)
from tests.engine.driver import make_engine, run
from tests.engine.exact_backend import an_adapter
from tests.ports import free_port
from tests.router.live import PATIENCE_S, until

SIZE = 4
ENGINE_ROOT = root_key(model=b"engine", block_size=SIZE, kv_dtype="f32", numerics="its own")


def keys(tokens: list[int], adapter: str = "", salt: str = "") -> list[bytes]:
    return list(KeyChain(told_root(SIZE, adapter, salt), SIZE, tokens).keys)


def stored(tokens: list[int], names: list[int], parent: int | None = None, **more) -> KvStored:
    return KvStored(tuple(names), parent, tokens, SIZE, **more)


def told() -> tuple[Told, PrefixIndex]:
    index = PrefixIndex()
    return Told(0, index, told_root), index


def hear(mirror: Told, *events) -> None:
    mirror.hear(KvBatch(0.0, events))


prompts = st.lists(st.sampled_from([1, 2]), min_size=1, max_size=24)


@settings(deadline=None)
@given(st.lists(prompts, max_size=12), st.integers(7, 12), st.data())
def test_a_mirror_hits_what_the_cache_itself_would(
    sequence: list[list[int]], num_blocks: int, data: st.DataObject
) -> None:
    """The engine's keys have another root; only tokens go from one to the other."""
    mirror, index = told()
    live: dict[int, list[int]] = {}

    def on_event(event: Event) -> None:
        if isinstance(event, BlockStored):
            start = event.start_token
            tokens = live[event.sequence_id][start : start + SIZE * len(event.keys)]
            hear(mirror, KvStored(event.keys, event.parent_key, tokens, SIZE, medium="GPU"))
        elif isinstance(event, BlockRemoved):
            hear(mirror, KvRemoved(event.keys, "GPU"))
        elif isinstance(event, AllBlocksCleared):
            hear(mirror, KvCleared())

    cache = CacheManager([GroupSpec(num_blocks)], SIZE, on_event=on_event)
    for number, tokens in enumerate(sequence):
        engine_keys = KeyChain(ENGINE_ROOT, SIZE, tokens).keys
        match = cache.match(engine_keys, len(tokens))
        (hit,) = index.hit_blocks(keys(tokens)[: (len(tokens) - 1) // SIZE], 1)
        assert hit * SIZE == match.num_tokens
        live[number] = tokens
        cache.allocate(number, match, len(tokens) - match.num_tokens)
        cache.commit(number, len(tokens), engine_keys)
        cache.free(number)
        if data.draw(st.integers(0, 9)) == 0:
            cache.reset()
        assert len(index) == len(mirror) == cache.usage().cached_blocks


def test_a_removal_of_one_copy_leaves_the_other() -> None:
    mirror, index = told()
    tokens = list(range(8))
    hear(mirror, stored(tokens, [1, 2], medium="GPU"), stored(tokens, [1, 2], medium="CPU"))
    hear(mirror, KvRemoved((1, 2), "GPU"))
    assert index.hit_blocks(keys(tokens), 1) == [2]
    hear(mirror, KvRemoved((2,), "CPU"))
    assert index.hit_blocks(keys(tokens), 1) == [1]


def test_two_groups_of_layers_that_announce_one_block_are_two_copies() -> None:
    mirror, index = told()
    tokens = list(range(4))
    hear(mirror, stored(tokens, [1], group=0), stored(tokens, [1], group=1))
    hear(mirror, KvRemoved((1,), group=0))
    assert index.hit_blocks(keys(tokens), 1) == [1]
    hear(mirror, KvRemoved((1,), group=1))
    assert index.hit_blocks(keys(tokens), 1) == [0]


def test_a_window_s_blocks_are_not_what_can_be_reused() -> None:
    mirror, index = told()
    hear(mirror, stored(list(range(4)), [1], window_tokens=512, keeps_all=False))
    assert len(index) == 0
    assert not mirror.is_known


def test_salts_and_adapters_never_meet() -> None:
    mirror, index = told()
    tokens = list(range(4))
    hear(mirror, stored(tokens, [1], extra_keys=(["pepper"],)))
    hear(mirror, stored(tokens, [2], adapter="tuned", extra_keys=(["tuned"],)))
    hear(mirror, stored(tokens, [3], adapter="tuned", extra_keys=(["tuned", "pepper"],)))
    for adapter, salt, known in (
        ("", "pepper", 1),
        ("tuned", "", 1),
        ("tuned", "pepper", 1),
        ("", "", 0),
        ("", "salt", 0),
    ):
        assert index.hit_blocks(keys(tokens, adapter, salt), 1) == [known]


def test_blocks_with_an_image_in_them_are_no_text() -> None:
    mirror, index = told()
    tokens = list(range(12))
    hear(mirror, stored(tokens, [1, 2, 3], extra_keys=(None, [["picture", 0]], None)))
    assert index.hit_blocks(keys(tokens), 1) == [1]


def test_a_block_behind_an_unknown_parent_is_not_believed() -> None:
    mirror, index = told()
    hear(mirror, stored(list(range(4)), [2], parent=1))
    assert (len(index), mirror.unknown_parents) == (0, 1)


def test_an_event_of_no_blocks_changes_nothing() -> None:
    mirror, index = told()
    hear(mirror, stored([], []), stored([1] * SIZE, [1]), stored([], [], parent=1))
    assert index.hit_blocks(keys([1] * SIZE), 1) == [1]
    assert (len(mirror), len(index), mirror.unknown_parents) == (1, 1, 0)


def test_what_has_no_end_is_forgotten_rather_than_kept() -> None:
    index = PrefixIndex()
    mirror = Told(0, index, told_root, max_blocks=100)
    for number in range(1000):
        hear(mirror, stored([number] * 4, [number]))
        assert len(index) == len(mirror) <= 100


def test_a_million_distinct_prompts_leave_what_is_learned_bounded() -> None:
    tree = PrefixTree()
    learned = Learned(0, tree, 500)
    for number in range(1_000_000):
        learned.use(joined([number.to_bytes(4)]))
    assert len(tree) == len(learned) == 500


def test_siblings_find_what_the_first_of_them_was_sent() -> None:
    tree, index = PrefixTree(), PrefixIndex()
    prompt = [bytes([number]) for number in range(9)]
    Learned(1, tree, 100).use(joined(prompt))
    assert tree.hit_blocks(joined(prompt), 2) == [0, 9]
    promised = Promised(2, index)
    promised.promise(prompt[:4])
    promised.promise(prompt[:6])
    assert index.hit_blocks(prompt, 3) == [0, 0, 6]
    promised.settle(prompt[:6])
    assert index.hit_blocks(prompt, 3) == [0, 0, 4]
    promised.settle(prompt[:4])
    assert index.hit_blocks(prompt, 3) == [0, 0, 0]


def test_drift_repairs_itself() -> None:
    """A replica with a fifth of the memory it is believed to have: predictions become right."""
    believed, truth = PrefixTree(), PrefixTree()
    learned, replica = Learned(0, believed, 500), Learned(0, truth, 100)

    def wrong(rounds: int) -> float:
        errors = 0
        for turn in range(rounds):
            prompt = joined([b"%02d.%d" % (turn % 40, place) for place in range(3)])
            if turn % 3 == 0:
                prompt = joined([b"once %d" % turn])
            (predicted,), (reported,) = (one.hit_blocks(prompt, 1) for one in (believed, truth))
            errors += abs(predicted - reported)
            learned.correct(predicted, reported)
            learned.use(prompt)
            replica.use(prompt)
        return errors / rounds

    first = wrong(300)
    wrong(3000)
    assert wrong(1000) < 0.2 * first


def test_a_persistent_zero_match_raises_an_alarm_and_a_match_ends_it() -> None:
    drift = Drift("replica")
    for _ in range(19):
        drift.note(1000, 0, 900)
    assert drift.alarm == ""
    drift.note(1000, 0, 900)
    assert drift.alarm == "never predicted"
    drift.note(1000, 880, 900)
    assert drift.alarm == ""
    for _ in range(20):
        drift.note(1000, 900, 0)
    assert drift.alarm == "never hits"


def test_agreement_is_a_share_of_tokens_and_no_mean_of_ratios() -> None:
    drift = Drift("replica")
    drift.note(10, 0, 10)
    drift.note(990, 500, 500)
    assert drift.agreement == pytest.approx(0.99)


# Events over real sockets.


@contextmanager
def publisher() -> Iterator[tuple[KvEventPublisher, Callable[[Event, list[int]], None], str, str]]:
    addresses = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    published = KvEventPublisher(*addresses)
    books = SimpleNamespace(on_event=None)
    published.follow(books)  # type: ignore[arg-type]
    try:
        yield published, lambda event, tokens: books.on_event(event, tokens, b"", ""), *addresses
    finally:
        published.close()


def block_stored(number: int) -> BlockStored:
    return BlockStored((b"%032d" % number,), None, SIZE, 0, None, 1, 0)


def test_a_listener_that_comes_late_hears_all_from_the_start() -> None:
    async def listen() -> None:
        mirror, index = told()
        with publisher() as (_, tell, endpoint, replay):
            for number in range(30):
                tell(block_stored(number), [number] * SIZE)
            heard = Subscription(endpoint, replay, hear=mirror.hear, forget=mirror.clear)
            task = asyncio.create_task(heard.run())
            await until(lambda: len(index) == 30)
            # Until the subscription stands, what is sent is missed, and repeated on the next.
            number = 30
            async with asyncio.timeout(PATIENCE_S):
                while number < 60 or len(index) < number:
                    tell(block_stored(number), [number] * SIZE)
                    number += 1
                    await asyncio.sleep(0.02)
            tell(BlockRemoved((b"%032d" % 7,), 0, 1), [])
            await until(lambda: len(index) == number - 1)
            tell(AllBlocksCleared(), [])
            await until(lambda: len(index) == 0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(listen())


def test_what_an_engine_holds_with_an_adapter_is_told_apart() -> None:
    engine, _ = make_engine()
    engine.adapters.load("red", an_adapter("red"))
    prompt = list(range(1, 14))

    async def listen() -> None:
        mirror, index = told()
        published = KvEventPublisher(*[f"tcp://127.0.0.1:{free_port()}" for _ in range(2)])
        assert engine.books is not None
        published.follow(engine.books)
        heard = Subscription(
            published.endpoint,
            published.replay_endpoint,
            hear=mirror.hear,
            forget=mirror.clear,
        )
        task = asyncio.create_task(heard.run())
        for number, (adapter, salt) in enumerate((("red", b""), ("", b""), ("red", b"salt"))):
            generation = Generation(max_tokens=1)
            run(engine, [Request(str(number), prompt, generation, salt, adapter=adapter)])
            async with asyncio.timeout(PATIENCE_S):
                while len(index) < 3 * number + 3:
                    engine.books.on_event(BlockRemoved((b"nobody's",), 0, 1), [], b"", "")
                    await asyncio.sleep(0.02)  # a first one may be missed: a later one shows it
            assert len(index) == 3 * number + 3
            told_salt = published_salt(salt) if salt else ""
            assert index.hit_blocks(keys(prompt, adapter, told_salt), 1) == [3]
        assert mirror.adapters == {"red"}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        published.close()

    asyncio.run(listen())


class RawSender:
    """A sender whose every frame is in the test's hand."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.pub = self.context.socket(zmq.XPUB)  # which is told of who listens
        self.replay = self.context.socket(zmq.ROUTER)
        self.endpoint = f"tcp://127.0.0.1:{self.pub.bind_to_random_port('tcp://127.0.0.1')}"
        self.again = f"tcp://127.0.0.1:{self.replay.bind_to_random_port('tcp://127.0.0.1')}"
        self.asked: list[int] = []

    def send(self, number: int) -> None:
        self.pub.send_multipart([b"kv@pod@model", encode_sequence(number), self.payload(number)])

    def payload(self, number: int) -> bytes:
        event = KvStored((number,), None, [number] * SIZE, SIZE)
        return encode_batch(KvBatch(1.0, (event,)))

    def repeat(self, *numbers: int) -> bool:
        """Answer one request to repeat, if there is one, with these."""
        if not self.replay.poll(0):
            return False
        who, _, first = self.replay.recv_multipart()
        self.asked.append(int.from_bytes(first, "big", signed=True))
        for number in numbers:
            frames = [who, b"", b"topic", encode_sequence(number), self.payload(number)]
            self.replay.send_multipart(frames)
        self.replay.send_multipart([who, b"", b"", encode_sequence(END_OF_REPLAY), b""])
        return True


@pytest.mark.parametrize("has_replay", [True, False])
def test_a_gap_is_repeated_or_clears_and_numbers_that_begin_again_clear(has_replay: bool) -> None:
    async def listen() -> None:
        sender, (mirror, index) = RawSender(), told()
        heard = Subscription(
            sender.endpoint,
            sender.again if has_replay else None,
            hear=mirror.hear,
            forget=mirror.clear,
        )
        task = asyncio.create_task(heard.run())
        if has_replay:
            await until(lambda: sender.repeat())
        await until(lambda: sender.pub.poll(0) > 0)
        sender.send(0)
        await until(lambda: len(index) == 1)
        sender.send(3)
        if has_replay:
            await until(lambda: sender.repeat(1, 2, 3))
            await until(lambda: len(index) == 4)
            assert sender.asked == [0, 1]
            assert (heard.gaps, heard.repaired_gaps) == (1, 1)
            sender.send(9)
            await until(lambda: sender.repeat(7, 8, 9))  # 4 to 6 are gone for good
            await until(lambda: len(index) == 3)
        else:
            await until(lambda: heard.gaps == 1)
            await until(lambda: len(index) == 1)
            assert index.hit_blocks(keys([3] * SIZE), 1) == [1]
        sender.send(0)  # another process
        await until(lambda: index.hit_blocks(keys([0] * SIZE), 1) == [1])
        assert len(index) == 1
        sender.pub.send_multipart([b"", encode_sequence(1), b"nonsense"])
        sender.pub.send_multipart([b"too few"])
        await until(lambda: heard.refused == 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        sender.context.destroy(linger=0)

    asyncio.run(listen())
