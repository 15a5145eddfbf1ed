"""Any life of an engine over tiers: evictions, loads, aborts, resets, damage, restarts, windows.

After every step the cache is recounted and every ledger adds up; every answer is the one that its
prompt gets alone, without blocks. Two engines share the lasting tier's folder one after the other.
"""

import random
import shutil
import tempfile
import time
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvikk.cache.tiers.disk import DiskTier
from kvikk.engine.requests import Generation, Request
from tests.engine import driver, tiered
from tests.engine.driver import Answer
from tests.engine.exact_backend import answer

CONTEXT = 32
POOLS: list[dict[str, object]] = [
    {"windows": (None,), "num_blocks": (17,), "block_size": 2},
    {"windows": (None, 4), "num_blocks": (18, 14), "block_size": 2},
    {"windows": (5,), "num_blocks": (14,), "block_size": 2},
    {"windows": (6, None, 3), "num_blocks": (10, 9, 8), "block_size": 4},
]
STORIES = [tuple(range(1, 25)), (1, 2, 3, 4, 5, 6, *[9] * 18), (7,) * 24]
REQUESTS = st.tuples(
    st.builds(
        lambda story, shared, own: story[:shared] + tuple(own),
        st.sampled_from(STORIES),
        st.sampled_from([0, 7, 13, 20, 24, 24]),
        st.lists(st.integers(0, 2), min_size=1, max_size=3),
    ),
    st.integers(1, 5),
    st.sampled_from([b"", b"", b"tenant"]),
)


class TierMachine(RuleBasedStateMachine):
    @initialize(
        pool=st.sampled_from(POOLS),
        tiers=st.sampled_from(["host", "disk", "both", "both"]),
        blocks_below=st.sampled_from([6, 40, 1000, 1000]),
        queue_blocks=st.sampled_from([2, 1000, 1000]),
    )
    def begin(
        self, pool: dict[str, object], tiers: str, blocks_below: int, queue_blocks: int
    ) -> None:
        self.pool, self.tiers = pool, tiers
        self.block_bytes = tiered.SLOT_BYTES * pool["block_size"]  # type: ignore[operator]
        self.limit_bytes = blocks_below * (self.block_bytes + 97)
        self.queue_bytes = queue_blocks * self.block_bytes
        self.folder = Path(tempfile.mkdtemp(prefix="kvikk-tier-"))
        self.requests: dict[str, Request] = {}
        self.answers: dict[str, Answer] = {}
        self.aborted: set[str] = set()
        self.start()

    def start(self) -> None:
        shape = {"num_groups": len(self.pool["windows"]), "block_size": self.pool["block_size"]}
        below = []
        if self.tiers in ("host", "both"):
            below.append(tiered.host(self.limit_bytes, **shape))
        if self.tiers in ("disk", "both"):
            below.append(tiered.disk(self.folder, 4 * self.limit_bytes, **shape))
        self.engine = tiered.make_engine(
            below,
            **self.pool,
            step_tokens=6,
            max_running=3,
            max_rows=8,
            max_context_tokens=CONTEXT,
            queue_bytes=self.queue_bytes,
        )

    @rule(requests=st.lists(REQUESTS, min_size=1, max_size=4))
    def add(self, requests: list[tuple[tuple[int, ...], int, bytes]]) -> None:
        for prompt, max_tokens, salt in requests:
            name = f"r{len(self.requests)}"
            generation = Generation(max_tokens=max_tokens)
            self.requests[name] = Request(name, prompt, generation, salt)
            self.engine.add(self.requests[name])

    @rule(requests=st.lists(REQUESTS, min_size=1, max_size=3))
    def serve(self, requests: list[tuple[tuple[int, ...], int, bytes]]) -> None:
        """To the end, and what was handed down has arrived."""
        self.add(requests)
        while self.engine.has_work:
            driver.step(self.engine, self.answers)
        assert self.engine.tiering.drain(120)

    # When a tier has answered is for its threads to say: no rule may depend on it, else equal
    # choices would not lead to equal ones, which Hypothesis takes for a defect of the test.
    @rule(steps=st.integers(1, 25))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            if self.engine.has_work:
                driver.step(self.engine, self.answers)

    @rule(place=st.integers(0, 20))
    def abort(self, place: int) -> None:
        if self.engine.abort(f"r{place}"):
            self.aborted.add(f"r{place}")

    @rule(now=st.sampled_from([False, False, False, True]))
    def reset(self, now: bool) -> None:
        if now:
            self.engine.reset_cache()

    @rule(seed=st.integers(0, 2**16), how=st.sampled_from(["flip", "cut", "remove"]))
    def damage(self, seed: int, how: str) -> None:
        files = sorted(path for path in self.folder.glob("*/*") if path.suffix != ".part")
        if not files:
            return
        chance = random.Random(seed)
        path = chance.choice(files)
        try:
            data = bytearray(path.read_bytes())
            if how == "remove":
                path.unlink()
            elif how == "cut":
                path.write_bytes(data[: chance.randrange(len(data))])
            else:
                data[chance.randrange(len(data))] ^= 1 + chance.randrange(255)
                path.write_bytes(data)
        except FileNotFoundError:
            pass  # it made room for another at this moment

    @precondition(lambda self: self.tiers != "host")
    @rule(now=st.sampled_from([False, True]))
    def restart(self, now: bool) -> None:
        if now and not self.engine.has_work:
            self.check_ledgers()
            self.engine.close()
            self.start()

    def check_ledgers(self) -> None:
        for account in self.engine.books.accounts.latest(1000):
            prompt = len(self.requests[account.request_id].prompt_token_ids)
            assert sum(account.ledger.totals().values()) == prompt
            got = self.answers.get(account.request_id)
            if got is not None and got.last is not None:
                assert account.ledger.hit_tokens == got.last.usage.cached_tokens

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        deadline = time.monotonic() + 200
        while self.engine.has_work:
            driver.step(self.engine, self.answers)
            assert time.monotonic() < deadline, "somebody starves"
        assert driver.live_blocks(self.engine) == 0
        self.check_ledgers()
        self.engine.close()
        assert not self.engine.tiering._restores
        shutil.rmtree(self.folder)
        assert self.answers.keys() == self.requests.keys()
        for name, request in self.requests.items():
            got = self.answers[name]
            want, reason = answer(
                request.prompt_token_ids,
                request.generation,
                self.pool["windows"],
                self.engine.max_context_tokens,
            )
            if name in self.aborted:
                assert got.token_ids == want[: len(got.token_ids)]
            else:
                assert (got.token_ids, got.finish_reason) == (want, reason)


TestTierMachine = TierMachine.TestCase
TestTierMachine.settings = settings(max_examples=60, stateful_step_count=30)


def test_a_reset_empties_every_tier(tmp_path: Path) -> None:
    folder: DiskTier = tiered.disk(tmp_path)
    engine = tiered.make_engine([tiered.host(), folder], num_blocks=(12,), max_context_tokens=48)
    prompts = {"a": list(range(1, 25)), "b": [9] * 40}
    for name, prompt in prompts.items():
        driver.run(engine, [driver.request(name, prompt, 2)])
    assert engine.tiering.drain(120)
    assert folder.usage().used_blocks > 10
    engine.reset_cache()
    again = driver.run(engine, [driver.request("again", prompts["a"], 2)])["again"]
    assert again.last.usage.cached_tokens == 0
    assert engine.tiering.drain(120)
    assert folder.usage().used_blocks == 6
    engine.close()
