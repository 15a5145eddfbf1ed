"""Any life of the cache, step by step, against the oracle and against what the blocks really hold.

A pretended backend stores in every slot of every block the whole prefix that a real one would have
computed it from. It checks that each read finds what was meant, and that nobody writes to a block
that someone else uses or that the index knows.
"""

from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvikk.cache.blocks import BlockCopy
from kvikk.cache.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvikk.cache.keys import KeyChain, root_key
from kvikk.cache.manager import CacheManager
from kvikk.cache.records import GroupSpec, Match, OutOfBlocks
from tests.cache.oracle import Oracle, OracleBlock

ROOT = root_key(model=b"model", block_size=2, kv_dtype="f32", numerics="test")

# Small pools and two tokens: prompts meet, blocks run out and windows move all the time.
GROUPS: list[list[tuple[int, int | None]]] = [
    [(10, None)],
    [(8, 3)],
    [(11, None), (8, 3)],
    [(8, 4), (12, None)],
    [(12, None), (8, 3), (9, 6)],
    [(9, None), (12, None)],
    [(10, None), (6, 1)],
]
LONGEST = 12


@dataclass
class Conversation:
    tokens: list[int]
    chain: KeyChain


class PretendedBackend:
    """Slots that remember the prefix they were computed from."""

    def __init__(self, num_groups: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots: list[dict[tuple[int, int], tuple[int, ...]]] = [{} for _ in range(num_groups)]
        self.copies: list[BlockCopy] = []

    def copy_blocks(self) -> None:
        for copy in self.copies:
            slots = self.slots[copy.group]
            for slot in range(self.block_size):
                slots[copy.target, slot] = slots.get((copy.source, slot), ())
        self.copies.clear()


class CacheMachine(RuleBasedStateMachine):
    @initialize(
        groups=st.sampled_from(GROUPS), block_size=st.integers(1, 4), caching=st.integers(0, 9)
    )
    def begin(self, groups: list[tuple[int, int | None]], block_size: int, caching: int) -> None:
        self.block_size = block_size
        self.windows = [window for _, window in groups]
        self.manager = CacheManager(
            [GroupSpec(num_blocks, window) for num_blocks, window in groups],
            block_size,
            prefix_caching=caching > 0,
            on_event=self.hear,
        )
        self.oracle = Oracle(groups, block_size, caching > 0)
        self.backend = PretendedBackend(len(groups), block_size)
        self.mirror: list[dict[bytes, bytes | None]] = [{} for _ in groups]
        self.live: dict[int, Conversation] = {}
        self.old_match: tuple[Match, list[int]] | None = None
        self.history: list[list[int]] = []
        self.next_id = 0

    def hear(self, event: Event) -> None:
        match event:
            case BlockStored():
                parent = event.parent_key
                tokens = self.live[event.sequence_id].tokens
                before = KeyChain(ROOT, self.block_size, tokens[: event.start_token]).keys
                assert parent == (before[-1] if before else None)
                for i, key in enumerate(event.keys):
                    stop = event.start_token + (i + 1) * self.block_size
                    assert key == KeyChain(ROOT, self.block_size, tokens[:stop]).keys[-1]
                    assert key not in self.mirror[event.group]
                    self.mirror[event.group][key] = parent
                    parent = key
            case BlockRemoved():
                for key in event.keys:
                    del self.mirror[event.group][key]
            case AllBlocksCleared():
                for keys in self.mirror:
                    keys.clear()

    # Rules

    def draw_prompt(self, data: st.DataObject) -> list[int]:
        """New, or the start of an earlier one, or its next turn."""
        prompt = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=LONGEST))
        if self.history and data.draw(st.integers(0, 3)):
            earlier = data.draw(st.sampled_from(self.history))
            prompt = (earlier[: data.draw(st.integers(1, len(earlier)))] + prompt)[:LONGEST]
        self.history.append(prompt)
        return prompt

    @rule(data=st.data(), chunk=st.integers(1, 6))
    def open_one(self, data: st.DataObject, chunk: int) -> None:
        self.open(data, chunk)

    def open(self, data: st.DataObject, chunk: int) -> int | None:
        prompt = self.draw_prompt(data)
        chain = KeyChain(ROOT, self.block_size, prompt)
        match = self.manager.match(chain.keys, len(prompt))
        assert self.manager.match(chain.keys, len(prompt)) == match, "a query changes nothing"
        hit, pending, owner = self.oracle.match(chain.keys, len(prompt))
        assert match.num_tokens == hit * self.block_size
        assert match.num_tokens < len(prompt)
        assert (match.pending_tokens, match.pending_on) == (pending * self.block_size, owner)
        self.old_match = match, prompt
        chunk = min(chunk, len(prompt) - match.num_tokens)
        return self.allocate(match, prompt, chunk)

    @rule(data=st.data())
    def serve(self, data: st.DataObject) -> None:
        """One request from its first block to its last, so that there is something to evict."""
        sequence_id = self.open(data, LONGEST)
        if sequence_id is not None:
            self.compute(sequence_id, self.oracle.sequences[sequence_id].room)
            self.free(sequence_id)

    def allocate(self, match: Match, prompt: list[int], chunk: int) -> int | None:
        sequence_id, self.next_id = self.next_id, self.next_id + 1
        self.live[sequence_id] = Conversation(prompt, KeyChain(ROOT, self.block_size, prompt))
        try:
            self.manager.allocate(sequence_id, match, chunk)
        except OutOfBlocks:
            del self.live[sequence_id]
            opened = False
        else:
            opened = True
        hit = match.num_tokens // self.block_size
        assert opened == self.oracle.open(sequence_id, match.keys, hit, chunk)
        return sequence_id if opened else None

    @precondition(lambda self: self.old_match)
    @rule()
    def allocate_on_an_old_match(self) -> None:
        match, prompt = self.old_match
        hit = match.num_tokens // self.block_size
        groups = zip(self.oracle.groups, self.windows, strict=True)
        if all(
            group.find(match.keys[position // self.block_size])
            for group, window in groups
            for position in self.oracle.visible(hit * self.block_size, window)
        ):
            self.allocate(match, prompt, 1)
        else:
            with pytest.raises(ValueError, match="stale"):
                self.manager.allocate(self.next_id, match, 1)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), num_tokens=st.integers(0, 5))
    def append_one(self, data: st.DataObject, num_tokens: int) -> None:
        self.append(data, data.draw(st.sampled_from(sorted(self.live))), num_tokens)

    def append(self, data: st.DataObject, sequence_id: int, num_tokens: int) -> bool:
        conversation = self.live[sequence_id]
        room = self.oracle.sequences[sequence_id].room
        missing = max(0, room + num_tokens - len(conversation.tokens))
        new = data.draw(st.lists(st.integers(0, 1), min_size=missing, max_size=missing))
        try:
            copies = self.manager.append(sequence_id, num_tokens)
        except OutOfBlocks:
            assert self.oracle.append(sequence_id, num_tokens) is None
            return False
        assert [copy.group for copy in copies] == self.oracle.append(sequence_id, num_tokens)
        self.backend.copies += copies
        conversation.tokens = conversation.tokens + new
        conversation.chain.extend(new)
        return True

    @precondition(lambda self: self.live)
    @rule(data=st.data(), whole=st.booleans(), late_keys=st.integers(0, 3))
    def step(self, data: st.DataObject, whole: bool, late_keys: int) -> None:
        """Compute one sequence, up to its room or less far; its keys may come later."""
        sequence_id = data.draw(st.sampled_from(sorted(self.live)))
        sequence = self.oracle.sequences[sequence_id]
        stop = sequence.room
        if not whole:
            stop = data.draw(st.integers(sequence.computed, sequence.room))
        num_keys = None
        if late_keys == 0:
            num_keys = data.draw(st.integers(0, stop // self.block_size))
        self.compute(sequence_id, stop, num_keys)

    def compute(self, sequence_id: int, stop: int, num_keys: int | None = None) -> None:
        self.backend.copy_blocks()
        tokens = self.live[sequence_id].tokens
        for group, window in enumerate(self.windows):
            table = self.manager.block_table(sequence_id, group)
            slots = self.backend.slots[group]
            for position in range(self.oracle.sequences[sequence_id].computed, stop):
                for seen in self.oracle.visible(position, window):
                    block, slot = table[seen // self.block_size], seen % self.block_size
                    assert slots[block, slot] == tuple(tokens[: seen + 1]), "stale or foreign keys"
                block, slot = table[position // self.block_size], position % self.block_size
                assert self.users(group, block) == [sequence_id], "wrote to a shared block"
                assert block not in self.indexed(group).values(), "wrote to a published block"
                slots[block, slot] = tuple(tokens[: position + 1])
        keys = self.live[sequence_id].chain.keys[:num_keys]
        self.manager.commit(sequence_id, stop, keys)
        self.oracle.commit(sequence_id, stop, keys)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), steps=st.integers(1, 4))
    def decode(self, data: st.DataObject, steps: int) -> None:
        """A few answers grow by a token a step, all computed in one batch."""
        sequence_ids = data.draw(st.lists(st.sampled_from(sorted(self.live)), unique=True))
        for _ in range(steps):
            batch = [i for i in sequence_ids if self.append(data, i, 1)]
            for sequence_id in batch:
                self.compute(sequence_id, self.oracle.sequences[sequence_id].room)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), settle=st.booleans(), children=st.integers(1, 2))
    def fork(self, data: st.DataObject, settle: bool, children: int) -> None:
        parent_id = data.draw(st.sampled_from(sorted(self.live)))
        parent = self.oracle.sequences[parent_id]
        if settle:
            self.compute(parent_id, parent.room)
        for _ in range(children):
            child_id, self.next_id = self.next_id, self.next_id + 1
            if parent.room > parent.computed:
                with pytest.raises(ValueError, match="between steps"):
                    self.manager.fork(parent_id, child_id)
                continue
            self.manager.fork(parent_id, child_id)
            self.oracle.fork(parent_id, child_id)
            # A fork takes its own way from where its parent stands.
            tokens = self.live[parent_id].tokens[: parent.computed]
            self.live[child_id] = Conversation(tokens, KeyChain(ROOT, self.block_size, tokens))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.free(data.draw(st.sampled_from(sorted(self.live))))

    def free(self, sequence_id: int) -> None:
        before = self.manager.usage()
        sole = self.manager.sole_blocks(sequence_id)
        result = self.manager.free(sequence_id)
        self.oracle.free(sequence_id)
        del self.live[sequence_id]
        assert result.cached_blocks + result.empty_blocks == sum(sole)
        assert before.live_blocks - self.manager.usage().live_blocks == sum(sole)

    @precondition(lambda self: self.live and self.next_id % 5 == 0)
    @rule()
    def reset(self) -> None:
        result = self.manager.reset()
        assert (result.dropped_blocks, result.held_blocks) == self.oracle.reset()
        assert result.held_by == tuple(self.live)
        assert result.complete == (result.held_blocks == 0)

    # Invariants

    def users(self, group: int, block: int) -> list[int]:
        return [i for i in self.live if block in self.manager.block_table(i, group)]

    def indexed(self, group: int) -> dict[bytes, int]:
        return self.manager._pools[group].index

    @invariant()
    def recounts(self) -> None:
        self.manager.check()

    @invariant()
    def equals_the_oracle(self) -> None:
        physical: dict[tuple[int, int], OracleBlock] = {}
        for group, usage in enumerate(self.manager.usage_by_group()):
            assert self.oracle.usage(group) == (
                usage.total_blocks,
                usage.live_blocks,
                usage.cached_blocks,
                usage.empty_blocks,
            )
            assert set(self.indexed(group)) == self.oracle.groups[group].keys()
            for sequence_id, sequence in self.oracle.sequences.items():
                table = self.manager.block_table(sequence_id, group)
                assert len(table) == len(sequence.tables[group])
                for block, meant in zip(table, sequence.tables[group], strict=True):
                    assert (block == -1) == (meant is None)
                    if meant is not None:
                        assert physical.setdefault((group, block), meant) is meant
        assert len(set(physical.values())) == len(physical), "one oracle block in two places"
        for sequence_id in self.live:
            assert self.manager.sole_blocks(sequence_id) == self.oracle.sole_blocks(sequence_id)

    @invariant()
    def a_mirror_fed_by_events_equals_the_index(self) -> None:
        for group, mirror in enumerate(self.mirror):
            assert set(mirror) == set(self.indexed(group))
            if self.windows[group] is None:
                for parent in mirror.values():
                    assert parent is None or parent in mirror, "a chain lost its head"


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=200, stateful_step_count=50)
