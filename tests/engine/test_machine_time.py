"""The machine's time is shared out among answers by what was computed for each."""

import time

from kvikk.engine.machine_time import MachineTime
from kvikk.engine.requests import Generation, Request
from tests.engine.driver import make_engine


class Chunk:
    """All that a stopwatch needs of a sequence."""

    def __init__(self) -> None:
        self.machine_s = 0.0


def test_a_steps_time_goes_by_tokens_and_all_of_it_but_the_last_end_is_shared_out():
    prompt, answer = Chunk(), Chunk()
    stopwatch = MachineTime()
    begun_s = time.perf_counter()
    for chunks in ({prompt: 30, answer: 1}, {answer: 1}):
        stopwatch.begin()
        time.sleep(0.01)
        stopwatch.share(chunks)
        time.sleep(0.01)
        stopwatch.end()
    spent_s = time.perf_counter() - begun_s
    first_s = prompt.machine_s / 30 * 31
    assert first_s >= 0.01
    assert answer.machine_s - first_s / 31 >= 0.02  # its own step, and what was left of the other's
    assert prompt.machine_s + answer.machine_s <= spent_s - 0.01


def test_what_was_reused_took_no_time_and_idle_time_is_nobodys():
    engine, _ = make_engine(step_tokens=16, max_context_tokens=64)
    spent_s = 0.0
    shares = []
    for name in ("first", "again"):
        engine.add(Request(name, list(range(1, 34)), Generation(max_tokens=1)))
        begun_s = time.perf_counter()
        outputs = []
        while engine.has_work:
            outputs += engine.step()
        spent_s += time.perf_counter() - begun_s
        shares.append(outputs[-1].timings.machine_s)
        time.sleep(0.02)
    assert all(share_s > 0 for share_s in shares)
    assert sum(shares) <= spent_s


def test_answers_that_share_a_prompt_have_time_of_their_own():
    engine, _ = make_engine(step_tokens=16, max_context_tokens=64)
    engine.add(Request("two", [1, 2, 3, 4, 5], Generation(max_tokens=4, choices=2, seed=1)))
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    times = {output.choice: output.timings.machine_s for output in outputs if output.finish_reason}
    assert set(times) == {0, 1}
    assert min(times.values()) > 0
