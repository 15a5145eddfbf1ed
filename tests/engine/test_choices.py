"""Several answers to one prompt: what each would be alone, over one copy of the prompt."""

import pytest

from kvikk.backends.base import SamplingParameters
from kvikk.engine.engine import Engine
from kvikk.engine.requests import Generation, Origin, Request
from kvikk.errors import RequestError
from tests.engine.driver import Answer, answer_name, live_blocks, make_engine, request, run, step
from tests.engine.exact_backend import answer
from tests.engine.guessing import Knowing

DRAWN = SamplingParameters(1.0)
PROMPT = tuple(index % 50 for index in range(41))


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("right_of_eight", [None, 6])
@pytest.mark.parametrize("windows", [(None,), (None, 6)])
@pytest.mark.parametrize("max_running", [3, 8])
def test_each_answer_is_the_one_it_would_be_alone(
    max_running: int,
    windows: tuple[int | None, ...],
    right_of_eight: int | None,
    prefix_caching: bool,
) -> None:
    generation = Generation(9, DRAWN, seed=5, choices=3)
    engine, _ = make_engine(
        windows=windows,
        num_blocks=(64,) * len(windows),
        max_running=max_running,
        prefix_caching=prefix_caching,
        speculation=None if right_of_eight is None else Knowing(windows, 64, right_of_eight),
        max_rows=16,
    )
    asked = [Request(name, PROMPT[start:], generation) for name, start in (("a", 0), ("b", 3))]
    got = run(engine, [*asked, request("alone", PROMPT, 9, sampling=DRAWN, seed=5)])
    for one in asked:
        for choice in range(3):
            expected = answer(one.prompt_token_ids, generation, windows, 64, choice)
            mine = got[answer_name(one.id, choice)]
            assert (mine.token_ids, mine.finish_reason) == expected
    assert got["alone"].token_ids == got["a"].token_ids
    assert got["a"].token_ids != got["a/1"].token_ids != got["a/2"].token_ids
    assert live_blocks(engine) == 0


def test_eight_answers_to_2000_tokens_store_the_prompt_once() -> None:
    """They are 62 full blocks and half of one."""
    engine, backend = make_engine(
        num_blocks=(200,), block_size=32, step_tokens=256, max_context_tokens=2100
    )
    prompt = tuple(index * 7 % 61 for index in range(2000))
    answers = advance(engine, Request("a", prompt, Generation(5, DRAWN, seed=1, choices=8)), 8)
    # The prompt is computed and each has its first token; the next step writes seven copies.
    assert live_blocks(engine) == 63
    answers |= advance(engine, None, 1, answers)
    assert live_blocks(engine) == 62 + 8
    stats = engine.stats()
    assert stats.copied_blocks == stats.forks == 7
    run_on(engine, answers)
    stats = engine.stats()
    assert stats.prompt_tokens == 2000
    assert backend.computed_tokens == 2000 + 8 * 4
    assert engine.books is not None
    (account,) = engine.books.accounts.latest(10)
    assert account.ledger.num_tokens == 2000
    assert sum(engine.books.accounts.since_start().values()) == 2000
    for choice in range(8):
        usage = answers[answer_name("a", choice)].last.usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (2000, 5)


def advance(
    engine: Engine, asked: Request | None, steps: int, answers: dict[str, Answer] | None = None
) -> dict[str, Answer]:
    answers = {} if answers is None else answers
    if asked is not None:
        engine.add(asked)
    for _ in range(steps):
        step(engine, answers)
    return answers


def run_on(engine: Engine, answers: dict[str, Answer]) -> None:
    while engine.has_work:
        step(engine, answers)


def test_a_later_prompt_is_told_which_request_computed_what_a_fork_published() -> None:
    engine, _ = make_engine()
    got = run(engine, [Request("a", PROMPT[:6], Generation(12, DRAWN, seed=2, choices=2))])
    goes_on = (*PROMPT[:6], *got["a/1"].token_ids, 1)
    run(engine, [request("b", goes_on, 1)])
    assert engine.books is not None
    account = engine.books.accounts.find("b")
    owners = {
        engine.books.accounts.name(span.detail.sequence) for span in account.ledger.spans[:-1]
    }
    assert owners == {"a"}
    assert account.ledger.hit_tokens == 16


@pytest.mark.parametrize("steps", range(6))
def test_an_abort_ends_all_answers_and_frees_all_blocks(steps: int) -> None:
    engine, _ = make_engine(max_running=2)
    answers: dict[str, Answer] = {}
    engine.add(Request("a", PROMPT, Generation(12, DRAWN, choices=2)))
    for _ in range(steps):
        step(engine, answers)
    assert engine.abort("a")
    last = step(engine, answers)
    assert [output.ends_request for output in last] == [False] * (len(last) - 1) + [True]
    assert {one.finish_reason for one in answers.values()} == {"abort"}
    assert live_blocks(engine) == 0
    assert not engine.has_work


def test_more_answers_than_run_at_once_are_refused() -> None:
    engine, _ = make_engine(max_running=4)
    with pytest.raises(RequestError, match="n is 5; this engine runs 4 answers at once"):
        engine.add(request("a", PROMPT, choices=5))


@pytest.mark.parametrize("choices", [2, 4, 8])
@pytest.mark.parametrize("num_blocks", [10, 12, 15, 17, 19])
def test_answers_that_fork_leave_other_tenants_what_is_kept_for_them(
    num_blocks: int, choices: int
) -> None:
    """Their blocks do not fit all at once: they give way to one another."""
    kept_tokens = 4 * int(0.3 * num_blocks)
    quiet, loud = Origin("quiet"), Origin("loud")
    engine, _ = make_engine(num_blocks=(num_blocks,), tenant_share=0.3)
    run(engine, [Request("first", range(kept_tokens), Generation(1), b"quiet", quiet)])
    drawn = Generation(12, DRAWN, seed=3, choices=choices)
    got = run(engine, [Request("flood", PROMPT[30:36], drawn, b"loud", loud)])
    for choice in range(choices):
        mine = got[answer_name("flood", choice)]
        expected = answer(PROMPT[30:36], drawn, (None,), 64, choice)
        assert (mine.token_ids, mine.finish_reason) == expected
    again = Request("again", range(kept_tokens + 1), Generation(1), b"quiet", quiet)
    last = run(engine, [again])["again"].last
    assert last is not None
    assert last.usage.cached_tokens == kept_tokens
