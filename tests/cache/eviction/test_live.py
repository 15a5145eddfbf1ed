"""A learning policy in the engine's pool: whatever happens, chains stay whole and books balance."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvikk.cache.eviction import LIVE_POLICIES, hit_density
from kvikk.cache.manager import CacheManager
from kvikk.cache.records import GroupSpec, OutOfBlocks
from kvikk.engine.options import EngineOptions
from kvikk.errors import ModelError
from tests.cache.common import keys_of

GROUPS = (
    [GroupSpec(14)],
    [GroupSpec(14), GroupSpec(10, window_tokens=6)],
    [GroupSpec(12, window_tokens=6)],
    [GroupSpec(12), GroupSpec(16)],
)


class LivePolicyMachine(RuleBasedStateMachine):
    """Prompts of two tenants that branch off each other, in any order, with pins and resets."""

    @initialize(
        groups=st.sampled_from(GROUPS),
        policy=st.sampled_from(LIVE_POLICIES),
        share=st.sampled_from([0.0, 0.3]),
    )
    def begin(self, groups: list[GroupSpec], policy: str, share: float) -> None:
        self.now_s = 0.0
        self.manager = CacheManager(
            groups, 4, eviction=policy, clock=lambda: self.now_s, tenant_share=share
        )
        self.prompts: dict[int, list[int]] = {}
        self.history: list[list[int]] = []
        self.number = 0

    @rule(data=st.data(), idle_s=st.sampled_from([0.0, 0.5, 30.0, 4000.0]))
    def open(self, data: st.DataObject, idle_s: float) -> None:
        self.now_s += idle_s
        tenant = data.draw(st.sampled_from("ab"))
        prompt = [ord(tenant), *data.draw(st.lists(st.integers(0, 1), min_size=3, max_size=15))]
        goes_on: bool = data.draw(st.booleans())
        if self.history and goes_on:
            earlier = data.draw(st.sampled_from(self.history))
            prompt = (earlier[: data.draw(st.integers(1, len(earlier)))] + prompt)[:24]
        self.number += 1
        keys = keys_of(prompt)
        match = self.manager.match(keys, len(prompt))
        try:
            self.manager.allocate(
                self.number, match, len(prompt) - match.num_tokens, tenant=chr(prompt[0])
            )
        except OutOfBlocks:
            return
        self.prompts[self.number] = prompt
        self.history.append(prompt)

    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        if self.prompts:
            number = data.draw(st.sampled_from(sorted(self.prompts)))
            prompt = self.prompts[number]
            self.manager.commit(number, len(prompt), keys_of(prompt))

    @rule(data=st.data(), computed=st.booleans())
    def close(self, data: st.DataObject, computed: bool) -> None:
        if self.prompts:
            number = data.draw(st.sampled_from(sorted(self.prompts)))
            prompt = self.prompts.pop(number)
            if computed:
                self.manager.commit(number, len(prompt), keys_of(prompt))
            self.manager.free(number)

    @rule(data=st.data())
    def pin_or_unpin(self, data: st.DataObject) -> None:
        if self.manager.pins:
            self.manager.unpin_oldest()
        elif self.history:
            self.manager.pin(keys_of(data.draw(st.sampled_from(self.history)))[:2])

    @rule(data=st.data())
    def sleep(self, data: st.DataObject) -> None:
        if self.history:
            idle = self.manager.idle(keys_of(data.draw(st.sampled_from(self.history))))
            self.manager.let_go(idle)

    @rule(chance=st.integers(0, 9))
    def reset(self, chance: int) -> None:
        if not chance:
            self.manager.reset()

    @invariant()
    def adds_up(self) -> None:
        if hasattr(self, "manager"):
            self.manager.check()


TestLivePolicyMachine = LivePolicyMachine.TestCase
TestLivePolicyMachine.settings = settings(max_examples=60, stateful_step_count=40)


@pytest.fixture(autouse=True)
def _learn_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hit_density, "_REFRESH_REQUESTS", 2)


def test_what_comes_back_outlives_what_does_not_in_the_pool() -> None:
    """One conversation returns every minute, a flood of others never does."""
    hits = {}
    for policy in ("lru", "hit_density"):
        now_s = 0.0
        manager = CacheManager([GroupSpec(12)], 4, eviction=policy, clock=lambda: now_s)  # noqa: B023
        hits[policy] = 0
        for turn in range(400):
            now_s += 10
            prompt = [1] * 13 if turn % 6 == 0 else [turn + 2] * 13
            keys = keys_of(prompt)
            match = manager.match(keys, 13)
            hits[policy] += match.num_tokens
            manager.allocate(turn, match, 13 - match.num_tokens)
            manager.commit(turn, 13, keys)
            manager.free(turn)
        manager.check()
    assert hits["lru"] == 0
    assert hits["hit_density"] > 0.8 * 12 * 400 / 6


def test_an_unknown_policy_is_refused_with_those_there_are() -> None:
    with pytest.raises(ModelError, match="'magic' is not one of lru, duel, hit_density"):
        EngineOptions(eviction="magic")
