"""Memory made ready in a pause: what comes next, once, and never what is in use."""

import itertools
import time
from dataclasses import replace

from kvikk.cache.manager import CacheManager
from kvikk.cache.records import GroupSpec
from kvikk.engine.ahead import AHEAD_BYTES, Ahead
from kvikk.engine.requests import Generation
from kvikk.engine.worker import EngineWorker
from kvikk.shapes.shape import CacheGroup
from tests.engine.driver import make_engine, plan, request, run
from tests.engine.exact_backend import ExactBackend, answer

PROMPT = tuple(range(1, 30))
PATIENCE_S = 60


def test_a_pause_touches_the_blocks_that_come_next_and_none_twice() -> None:
    engine, backend = make_engine(windows=(None, 8), num_blocks=(20, 12))
    list(itertools.islice(engine.touch_ahead(), 5))
    assert backend.touched == [(0, block) for block in engine.cache.next_empty(0, 5)]
    engine.add(request("a", PROMPT, 8))
    engine.step()
    live = set(engine.cache.block_table(engine.find("a").number, 0))
    before = set(backend.touched)
    list(engine.touch_ahead())
    assert len(backend.touched) == len(set(backend.touched))
    assert not live & {block for group, block in set(backend.touched) - before if group == 0}
    answers = run(engine)
    assert answers["a"].token_ids == answer(PROMPT, Generation(8), (None, 8), 64)[0]
    list(engine.touch_ahead())
    # All but what was in use or is still known.
    empty = {
        (group, block)
        for group, count in ((0, 20), (1, 12))
        for block in engine.cache.next_empty(group, count)
    }
    assert empty <= set(backend.touched)


def test_no_more_is_touched_than_the_bound() -> None:
    big = CacheGroup(tuple(range(64)), 1024, 1024, None)  # 2 MiB a block of four tokens
    shape = replace(plan(num_blocks=(100,)), groups=(big,))
    backend = ExactBackend()
    backend.load(None, shape)
    ahead = Ahead(backend, CacheManager([GroupSpec(100, None)], 4), shape)
    list(ahead.touch())
    assert len(backend.touched) == AHEAD_BYTES // (2 << 20) == 64


def test_a_worker_with_nothing_to_do_touches_and_goes_on() -> None:
    engine, backend = make_engine(num_blocks=(32,))
    worker = EngineWorker(engine)
    deadline_s = time.monotonic() + PATIENCE_S
    while len(backend.touched) < 32:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    worker.stop()
    assert sorted(backend.touched) == [(0, block) for block in range(32)]
