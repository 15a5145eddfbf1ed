"""Shares of tenants, pins, and blocks that are let go on purpose."""

import random

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvikk.cache.events import BlockRemoved
from kvikk.cache.manager import CacheManager
from kvikk.cache.queue import COMMON, EvictionQueue
from kvikk.cache.records import GroupSpec, OutOfBlocks
from tests.cache.common import keys_of, serve


def share_cache(num_blocks: int, share: float) -> CacheManager:
    return CacheManager([GroupSpec(num_blocks)], 4, tenant_share=share)


def serve_for(
    cache: CacheManager, number: int, tokens: list[int], tenant: str, last_resort: bool = False
) -> int:
    """One request of a tenant from arrival to its end; returns the tokens that were hit."""
    keys = keys_of(tokens)
    match = cache.match(keys, len(tokens))
    rest = len(tokens) - match.num_tokens
    cache.allocate(number, match, rest, tenant=tenant, last_resort=last_resort)
    cache.commit(number, len(tokens), keys)
    cache.free(number)
    cache.check()
    return match.num_tokens


def prompt_of(tenant: int, size: int = 16) -> list[int]:
    return [tenant * 1000 + place for place in range(size)]


@pytest.mark.parametrize(("share", "hit_tokens"), [(0.0, 0), (0.3, 12)])
def test_a_flood_evicts_a_quiet_tenants_prompt_unless_it_has_a_share(
    share: float, hit_tokens: int
) -> None:
    cache = share_cache(20, share)
    serve_for(cache, 0, prompt_of(1), "quiet")
    for number in range(1, 50):
        serve_for(cache, number, prompt_of(1000 + number), "flood")
    assert serve_for(cache, 50, prompt_of(1), "quiet") == hit_tokens


def test_a_tenant_beyond_its_share_is_evicted_before_others() -> None:
    cache = share_cache(20, 0.25)
    serve_for(cache, 0, prompt_of(1), "large")
    serve_for(cache, 1, prompt_of(2), "large")
    serve_for(cache, 2, prompt_of(3), "small")
    serve_for(cache, 3, prompt_of(4, 44), "third")
    assert cache.match(keys_of(prompt_of(3)), 16).num_tokens == 12


def test_what_is_kept_for_another_is_not_to_be_had_but_as_a_last_resort() -> None:
    cache = share_cache(10, 0.5)
    serve_for(cache, 0, prompt_of(1, 20), "quiet")
    assert cache.available("quiet") == (10,)
    assert cache.available("flood") == (5,)
    with pytest.raises(OutOfBlocks):
        serve_for(cache, 1, prompt_of(2, 24), "flood")
    cache.check()
    serve_for(cache, 2, prompt_of(2, 24), "flood", last_resort=True)
    assert cache.match(keys_of(prompt_of(1, 20)), 20).num_tokens == 16


def test_no_more_shares_are_given_than_there_is() -> None:
    cache = share_cache(10, 0.5)
    for number, tenant in enumerate(["a", "b", "c"]):
        serve_for(cache, number, prompt_of(number, 8), tenant)
    assert cache.available("d") == (10 - 2 - 2,), "a and b have one, c has not"


def test_a_pinned_prefix_stays_whatever_comes_and_goes_when_it_is_unpinned() -> None:
    cache = share_cache(40, 0.0)
    tokens = prompt_of(1, 21)
    serve(cache, 0, tokens)
    pin = cache.pin(keys_of(tokens))
    assert pin is not None
    assert (pin.num_tokens, pin.num_blocks) == (20, 5)
    for number in range(1, 40):
        serve(cache, number, prompt_of(1000 + number))
    assert cache.match(keys_of(tokens), 21).num_tokens == 20
    assert cache.pins == (pin,)
    assert cache.unpin(pin.number)
    assert not cache.unpin(pin.number)
    for number in range(40, 80):
        serve(cache, number, prompt_of(1000 + number))
    assert cache.match(keys_of(tokens), 21).num_tokens == 0


def test_pins_have_a_limit_and_what_they_share_counts_once() -> None:
    cache = share_cache(40, 0.0)
    serve(cache, 0, prompt_of(1, 40))
    serve(cache, 1, prompt_of(2, 40))
    assert cache.pin(keys_of(prompt_of(1, 40))) is not None
    assert cache.pin(keys_of(prompt_of(1, 40))) is not None
    with pytest.raises(ValueError, match="25%"):
        cache.pin(keys_of(prompt_of(2, 40)))
    assert cache.pin(keys_of(prompt_of(3, 40))) is None, "nothing of it is here"
    cache.check()
    assert cache.unpin_oldest() is not None
    assert cache.match(keys_of(prompt_of(1, 40)), 40).num_tokens == 36


def test_a_reset_takes_the_pins_with_it() -> None:
    cache = share_cache(40, 0.0)
    serve(cache, 0, prompt_of(1))
    cache.pin(keys_of(prompt_of(1)))
    assert cache.reset().complete
    assert cache.pins == ()
    cache.check()


def test_what_another_conversation_needs_is_not_let_go() -> None:
    removed: list[BlockRemoved] = []
    cache = CacheManager(
        [GroupSpec(40), GroupSpec(40, 6)],
        4,
        on_event=lambda event: removed.append(event) if isinstance(event, BlockRemoved) else None,
    )
    system = prompt_of(1, 8)
    one, other = system + prompt_of(2, 12), system + prompt_of(3, 12)
    serve(cache, 0, one)
    serve(cache, 1, other)
    idle = cache.idle(keys_of(one))
    cache.let_go(idle)
    cache.check()
    assert {key for _, key, _ in idle} == set(keys_of(one)[2:])
    assert {event.reason for event in removed} == {"sleep"}
    assert cache.match(keys_of(one), 20).num_tokens == 8
    assert cache.match(keys_of(other), 20).num_tokens == 16


class QueueMachine(RuleBasedStateMachine):
    """The queue against a plain list of blocks with the moments they were left at."""

    @initialize(reserves=st.lists(st.integers(0, 4), max_size=3))
    def begin(self, reserves: list[int]) -> None:
        self.queue = EvictionQueue(12)
        self.reserves = [0, *reserves]
        for reserve in reserves:
            self.queue.add_owner(reserve)
        self.owner: dict[int, int] = {}  # of indexed blocks
        self.cached: list[int] = []  # oldest first

    @rule(block=st.integers(0, 11), owner=st.integers(0, 3))
    def index(self, block: int, owner: int) -> None:
        if block not in self.owner:
            self.owner[block] = owner % len(self.reserves)
            self.queue.index(block, None, self.owner[block])

    @rule(block=st.integers(0, 11))
    def toggle(self, block: int) -> None:
        if block in self.cached:
            self.cached.remove(block)
            self.queue.remove(block)
        elif block in self.owner:
            self.cached.append(block)
            self.queue.append(block, b"")

    @rule(asker=st.integers(0, 3))
    def evict(self, asker: int) -> None:
        asker %= len(self.reserves)
        held = [sum(o == owner for o in self.owner.values()) for owner in range(4)]
        beyond = [b for b in self.cached if held[self.owner[b]] > self.reserves[self.owner[b]]]
        own = [b for b in self.cached if self.owner[b] == asker]
        kept = 0
        for owner in range(len(self.reserves)):
            cached = sum(self.owner[b] == owner for b in self.cached)
            while owner != asker and cached and held[owner] - cached < self.reserves[owner]:
                live = held[owner] - cached
                kept += min(cached, self.reserves[owner] - live)
                break
        assert self.queue.reserved(asker) == kept
        if self.cached:
            [victim] = self.queue.evict(asker, 1)
            assert victim == (beyond or own or self.cached)[0]
            self.cached.remove(victim)
            del self.owner[victim]

    @invariant()
    def adds_up(self) -> None:
        if hasattr(self, "queue"):
            self.queue.check(list(self.owner))
            assert sorted(self.queue.blocks()) == sorted(self.cached)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=60, stateful_step_count=40)


def test_without_owners_the_queue_is_plain_least_recently_used() -> None:
    queue = EvictionQueue(50)
    order = random.Random(1).sample(range(50), 50)
    for block in order:
        queue.index(block, None, COMMON)
        queue.append(block, b"")
    assert queue.evict(COMMON, 50) == order
    assert queue.num_cached == 0
