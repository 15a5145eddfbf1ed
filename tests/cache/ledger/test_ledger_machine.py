"""Any life of a cache: every ledger balances, and each token's cause is what the history says."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvikk.cache.keys import KeyChain, root_key
from kvikk.cache.ledger.accountant import Accountant
from kvikk.cache.ledger.records import Cause
from kvikk.cache.ledger.roots import Root
from kvikk.cache.manager import CacheManager
from kvikk.cache.records import GroupSpec, OutOfBlocks
from tests.cache.ledger.history import History, Seen

GROUPS: list[list[tuple[int, int | None]]] = [
    [(14, None)],
    [(16, None), (12, 4)],
    [(10, 3), (20, None)],
    [(12, 5)],
]
# Prompts are patched together from few pieces, so that they meet at every alignment.
PIECES = [[1], [2], [3, 1, 2, 2, 3, 3], [1, 1, 1, 1, 1], [4, 5, 6, 7, 8, 9, 4], [2, 1]]
PROMPTS = st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map(
    lambda pieces: [token for piece in pieces for token in piece]
)
TENANTS = st.sampled_from([b"", b"", b"salt"])
ADAPTERS = st.sampled_from([b"", b"", b"adapter"])


class LedgerMachine(RuleBasedStateMachine):
    @initialize(groups=st.sampled_from(GROUPS), block_size=st.integers(1, 4))
    def begin(self, groups: list[tuple[int, int | None]], block_size: int) -> None:
        self.now_s = 0.0
        windows = [window for _, window in groups]
        self.accountant = Accountant(block_size, windows, clock=lambda: self.now_s)
        self.manager = CacheManager(
            [GroupSpec(num_blocks, window) for num_blocks, window in groups],
            block_size,
            on_event=self.accountant.hear,
        )
        self.history = History(self.manager)
        self.live: dict[int, tuple[Root, list[int], KeyChain]] = {}
        self.promised: dict[int, set[bytes]] = {}
        self.next_id = 0

    @rule(data=st.data(), tokens=PROMPTS, salt=TENANTS, adapter=ADAPTERS, life=st.integers(0, 3))
    def request(
        self, data: st.DataObject, tokens: list[int], salt: bytes, adapter: bytes, life: int
    ) -> None:
        """Most prompts go on from an earlier one; most are computed, many end at once."""
        if self.history.seen and data.draw(st.integers(0, 3)):
            earlier = data.draw(st.sampled_from(sorted(self.history.seen)))
            known = self.history.seen[earlier].tokens
            tokens = known[: data.draw(st.integers(1, len(known)))] + tokens
        number = self.admit(tokens[:24], salt, adapter)
        if number is not None and life > 0:
            self.compute(number, [])
            if life > 1:
                self.end(number)

    def admit(self, tokens: list[int], salt: bytes, adapter: bytes) -> int | None:
        size = self.manager.block_size
        key = root_key(
            model=b"m", block_size=size, kv_dtype="f32", numerics="n", adapter=adapter, salt=salt
        )
        root = Root(key, b"m", adapter, "f32", "n", salt)
        prompt, chain = list(tokens), KeyChain(key, size, tokens)
        self.history.name(root, prompt, chain.keys)
        match = self.manager.match(chain.keys, len(prompt))
        number = self.next_id
        computing = {self.history.names[key] for keys in self.promised.values() for key in keys}
        try:
            self.manager.allocate(number, match, len(prompt) - match.num_tokens)
        except OutOfBlocks:
            return None
        self.next_id += 1
        self.history.look(Cause.EVICTED)
        ledger = self.accountant.open(
            number,
            prompt,
            chain.keys,
            root,
            num_prompt_tokens=len(prompt),
            hit_tokens=match.num_tokens,
            computing=lambda key: self.manager.computing(key, besides=number),
        )
        allowed = self.history.causes(number, prompt, root, match.num_tokens, computing)
        for span in ledger.spans:
            for position in range(span.start, span.stop):
                assert span.cause in allowed[position], (position, allowed[position], ledger.spans)
        self.check_own_spans(ledger.spans, ledger.own_spans, number, prompt, root)
        self.check_details(ledger.spans, prompt, number)
        self.check_groups(ledger.spans, chain.keys)
        self.history.seen[number] = Seen(root, prompt, set())
        self.live[number] = (root, prompt, chain)
        self.promised[number] = set(match.keys[match.num_tokens // size :])
        return number

    def check_own_spans(self, spans, own_spans, number: int, prompt, root) -> None:
        """A tenant sees the same, but for what only another's blocks could tell."""
        said = [span.cause for span in spans for _ in range(span.num_tokens)]
        own = [span.cause for span in own_spans for _ in range(span.num_tokens)]
        for position, (all_known, known) in enumerate(zip(said, own, strict=True)):
            if all_known is Cause.ISOLATED:
                assert known in self.history.moved(number, prompt, root, position)
            else:
                assert known is all_known

    def check_details(self, spans, prompt: list[int], number: int) -> None:
        for span in spans:
            detail = span.detail
            if span.cause in (Cause.HIT_DEVICE, Cause.PARTIAL) and detail.sequence is not None:
                there = self.history.seen[detail.sequence].tokens
                assert there[: span.stop] == prompt[: span.stop]
            elif span.cause is Cause.MOVED:
                there = self.history.seen[detail.sequence].tokens
                at = detail.differs_at
                assert there[:at] == prompt[:at]
                assert list(detail.value) == prompt[at : at + len(detail.value)]
                assert list(detail.seen_value) == there[at : at + len(detail.seen_value)]
            elif span.cause is Cause.IN_FLIGHT:
                assert detail.sequence in self.live

    def check_groups(self, spans, keys) -> None:
        """What was evicted is not in the group that is named, and in all that matter more."""
        size, pools = self.manager.block_size, self.manager._pools
        for span in spans:
            group = span.detail.group
            if span.cause is not Cause.EVICTED or group is None:
                continue
            for key in keys[span.start // size : span.stop // size]:
                full = [
                    key in pool.index
                    for pool, spec in zip(pools, self.manager.groups, strict=True)
                    if spec.window_tokens is None
                ]
                if all(key in pool.index for pool in pools):
                    continue  # useless without one before it
                if self.manager.groups[group].window_tokens is None:
                    assert not all(full)
                else:
                    assert all(full)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), answer=st.lists(st.integers(1, 3), max_size=3))
    def go_on(self, data: st.DataObject, answer: list[int]) -> None:
        self.compute(data.draw(st.sampled_from(sorted(self.live))), answer)

    def compute(self, number: int, answer: list[int]) -> None:
        """A sequence computes all it has, and goes on by a few tokens."""
        root, tokens, chain = self.live[number]
        self.manager.commit(number, len(tokens), chain.keys)
        self.history.look(Cause.EVICTED, number)
        for promised in self.promised.values():
            promised.difference_update(chain.keys)
        try:
            self.manager.append(number, len(answer))
        except OutOfBlocks:
            return
        tokens.extend(answer)
        chain.extend(answer)
        self.history.name(root, tokens, chain.keys)
        self.history.look(Cause.EVICTED)
        self.manager.commit(number, len(tokens), chain.keys)
        self.history.look(Cause.EVICTED, number)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def end_one(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.live))))

    def end(self, number: int) -> None:
        self.manager.free(number)
        self.accountant.close(number)
        del self.live[number], self.promised[number]
        self.history.look(Cause.EVICTED)

    @rule()
    def reset(self) -> None:
        self.manager.reset()
        self.history.look(Cause.EXPIRED)
        for promised in self.promised.values():
            promised.clear()

    @rule(seconds=st.floats(0, 10))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=150, stateful_step_count=40)
