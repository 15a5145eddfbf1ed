"""Any life of the engine: arrivals, aborts, failures, resets, full pools, shared prefixes, windows,
and guesses that are right, wrong or in between.

After every step the cache is recounted, and every answer that ends by itself is the one that the
prompt gets alone, without blocks.
"""

from itertools import islice

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvikk.backends.base import SamplingParameters
from kvikk.engine.requests import Generation, Pooling, Request
from kvikk.errors import RequestError
from tests.engine import driver
from tests.engine.driver import Answer
from tests.engine.exact_backend import adapter_value, an_adapter, answer, embedding
from tests.engine.guessing import Knowing

# Small pools: two or three requests fill them.
POOLS: list[dict[str, object]] = [
    {"windows": (None,), "num_blocks": (13,), "block_size": 2},
    {"windows": (None,), "num_blocks": (9,), "block_size": 4, "prefix_caching": False},
    {"windows": (5,), "num_blocks": (14,), "block_size": 2},
    {"windows": (None, 4), "num_blocks": (15, 13), "block_size": 2},
    {"windows": (6, None, 3), "num_blocks": (9, 8, 8), "block_size": 4},
    {"windows": (None, 2), "num_blocks": (26, 22), "block_size": 1},
]
# Beginnings that prompts share, wholly or in part.
STORIES = [(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11), (1, 2, 3, 4, 5, 9, 9, 9, 9), (4, 4, 4, 4, 4, 4, 4)]

SAMPLINGS = st.one_of(
    st.just(SamplingParameters()),
    st.builds(
        SamplingParameters,
        temperature=st.sampled_from([0.3, 1.0]),
        top_k=st.sampled_from([0, 5]),
        top_p=st.sampled_from([0.8, 1.0]),
    ),
)
REQUESTS = st.tuples(
    st.builds(
        lambda story, shared, own: story[:shared] + tuple(own),
        st.sampled_from(STORIES),
        st.integers(0, 11),
        st.lists(st.integers(0, 2), min_size=1, max_size=4),
    ),
    st.builds(
        Generation,
        max_tokens=st.sampled_from([None, 12, 9, 3, 1]),
        sampling=SAMPLINGS,
        seed=st.integers(0, 3),
        stop_token_ids=st.sampled_from([(), (), (), (5, 6, 7, 8)]),
        choices=st.sampled_from([1, 1, 1, 2]),
        min_tokens=st.sampled_from([0, 0, 1]),
        frequency_penalty=st.sampled_from([0, 0, 0.5]),
        repetition_penalty=st.sampled_from([1, 1, 1.5]),
        num_prompt_logprobs=st.sampled_from([None, None, None, 1]),
    ),
    st.sampled_from([b"", b"", b"", b"tenant"]),
    st.sampled_from(["", "", "", "red", "blue"]),
    st.sampled_from([None, None, None, "last", "mean"]),
)
# What the two adapters are: the same at every loading.
ADAPTERS = {name: an_adapter(name) for name in ("red", "blue")}


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        pool=st.sampled_from(POOLS),
        step_tokens=st.sampled_from([4, 6, 16]),
        max_running=st.sampled_from([2, 4, 4]),
        right_of_eight=st.sampled_from([None, 0, 4, 7, 8]),
    )
    def start(
        self,
        pool: dict[str, object],
        step_tokens: int,
        max_running: int,
        right_of_eight: int | None,
    ) -> None:
        self.windows = pool["windows"]
        self.engine, self.backend = driver.make_engine(
            **pool,  # type: ignore[arg-type]
            step_tokens=step_tokens,
            max_running=max_running,
            max_context_tokens=18,
            max_rows=max_running + 7,
            speculation=(
                None if right_of_eight is None else Knowing(self.windows, 18, right_of_eight)
            ),
        )
        self.requests: dict[str, Request] = {}
        self.answers: dict[str, Answer] = {}
        self.aborted: set[str] = set()
        self.ended: set[str] = set()

    @rule(requests=st.lists(REQUESTS, min_size=1, max_size=6))
    def add(
        self, requests: list[tuple[tuple[int, ...], Generation, bytes, str, Pooling | None]]
    ) -> None:
        for prompt, generation, salt, adapter, pooling in requests:
            request = Request(
                f"r{len(self.requests)}",
                prompt,
                generation if pooling is None else Generation(max_tokens=1),
                salt,
                adapter=adapter,
                pooling=pooling,
            )
            fits = len(prompt) < self.engine.max_context_tokens + (pooling is not None)
            fits &= not adapter or adapter in self.engine.adapters.by_name
            try:
                self.engine.add(request)
            except RequestError:
                assert not fits
            else:
                assert fits
                self.requests[request.id] = request

    @precondition(lambda self: self.engine.has_work)
    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            if not self.engine.has_work:
                return
            self.one_step()

    def one_step(self) -> None:
        for output in driver.step(self.engine, self.answers):
            assert output.request_id not in self.ended
            if output.ends_request:
                self.ended.add(output.request_id)

    @rule(pieces=st.integers(1, 20))
    def pause(self, pieces: int) -> None:
        """What is touched is spoilt: it may be nobody's."""
        for _ in islice(self.engine.touch_ahead(), pieces):
            pass

    @rule(place=st.integers(0, 40))
    def abort(self, place: int) -> None:
        name = f"r{place}"
        if name not in self.requests:
            return
        done = name in self.ended
        aborted = self.engine.abort(name)
        assert aborted == (not done and name not in self.aborted)
        if aborted:
            self.aborted.add(name)

    @rule(name=st.sampled_from(list(ADAPTERS)))
    def change_adapters(self, name: str) -> None:
        adapters = self.engine.adapters
        if name not in adapters.by_name:
            adapters.load(name, ADAPTERS[name])
            return
        running = adapters.unload(name)
        unfinished = self.requests.keys() - self.aborted - self.ended
        with_it = [self.requests[one] for one in unfinished if self.requests[one].adapter == name]
        # Some may have it from an earlier loading.
        assert 0 <= running <= sum(request.generation.choices for request in with_it)

    @rule(now=st.sampled_from([False, False, True]))
    def reset(self, now: bool) -> None:
        if not now:
            return
        result = self.engine.reset_cache()
        assert result.held_blocks == driver.live_blocks(self.engine)

    @rule(now=st.sampled_from([False, False, False, True]))
    def break_the_backend(self, now: bool) -> None:
        if now:
            self.backend.failure = OSError("device lost")

    @invariant()
    def blocks_add_up(self) -> None:
        stats = self.engine.stats()
        for group in stats.groups:
            parts = group.live_blocks + group.cached_blocks + group.empty_blocks
            assert parts == group.total_blocks
        if stats.running_requests == 0:
            assert driver.live_blocks(self.engine) == 0
        unfinished = self.requests.keys() - self.aborted - self.ended
        most = sum(self.requests[name].generation.choices for name in unfinished)
        assert len(unfinished) <= stats.running_requests + stats.waiting_requests <= most

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.backend.failure = None
        # Each step gives at least the oldest request one token more: nobody can wait longer.
        limit = sum(
            request.generation.choices
            * (len(request.prompt_token_ids) + self.engine.max_context_tokens)
            for request in self.requests.values()
        )
        for _ in range(limit + 1):
            if not self.engine.has_work:
                break
            self.one_step()
        assert not self.engine.has_work, "somebody starves"
        assert driver.live_blocks(self.engine) == 0
        numbers = {one.number for one in self.engine.adapters.by_name.values()}
        assert self.backend.adapters.keys() == numbers, "an adapter is forgotten with its last user"
        assert self.ended == self.requests.keys() <= self.answers.keys()
        for name, request in self.requests.items():
            self.compare(request, self.answers[name], 0)
            for choice in range(1, request.generation.choices):
                got = self.answers.get(driver.answer_name(name, choice))
                if got is not None:
                    self.compare(request, got, choice)
                else:  # it ended before its prompt was computed
                    assert self.answers[name].finish_reason in ("abort", "error")

    def compare(self, request: Request, got: Answer, choice: int) -> None:
        adapter = adapter_value(ADAPTERS[request.adapter].content_digest) if request.adapter else 0
        if request.pooling is not None:
            assert got.token_ids == []
            if got.finish_reason == "stop":
                prompt = request.prompt_token_ids
                vector = embedding(prompt, request.pooling, self.windows, adapter)
                np.testing.assert_allclose(got.embedding, vector, rtol=1e-6)
            return
        token_ids, reason = answer(
            request.prompt_token_ids,
            request.generation,
            self.windows,
            self.engine.max_context_tokens,
            choice,
            adapter=adapter,
        )
        if got.finish_reason in ("stop", "length"):
            assert (got.token_ids, got.finish_reason) == (token_ids, reason)
        else:
            assert got.finish_reason == ("abort" if request.id in self.aborted else "error")
            assert got.token_ids == token_ids[: len(got.token_ids)]
        assert got.last is not None
        usage = got.last.usage
        assert usage.prompt_tokens == len(request.prompt_token_ids)
        assert 0 <= usage.cached_tokens < usage.prompt_tokens


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=80, stateful_step_count=40)
