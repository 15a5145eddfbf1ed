"""Guesses make answers come sooner and change nothing else."""

import numpy as np
import pytest

from kvikk import LLM
from kvikk.backends.base import SamplingParameters
from kvikk.engine.requests import Generation
from kvikk.engine.speculation import PassCost, Speculation
from tests.engine.driver import Answer, live_blocks, make_engine, request, run, step
from tests.engine.exact_backend import answer
from tests.engine.guessing import Knowing

MIB = 2**20
PROMPT = tuple(range(1, 11))
GREEDY = SamplingParameters()
DRAWN = SamplingParameters(temperature=1.0, top_k=20)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("right_of_eight", [0, 3, 7, 8])
@pytest.mark.parametrize("block_size", [1, 2, 4, 16])
def test_answers_are_those_without_guesses_and_come_in_fewer_steps(
    sampling: SamplingParameters, right_of_eight: int, block_size: int
) -> None:
    generation = Generation(30, sampling, seed=3)
    for windows in ((None,), (None, 6), (3,)):
        guessing = Knowing(windows, 64, right_of_eight)
        engine, backend = make_engine(
            windows=windows,
            num_blocks=(128,) * len(windows),
            block_size=block_size,
            speculation=guessing,
        )
        got = run(engine, [request("a", PROMPT, 30, sampling=sampling, seed=3)])["a"]
        assert got.token_ids == answer(PROMPT, generation, windows, 64)[0]
        stats = engine.stats()
        assert stats.generated_tokens == 30
        assert stats.steps == 30 - stats.accepted_tokens
        assert (
            backend.computed_tokens
            == stats.computed_tokens
            == 10 + stats.drafted_tokens + (stats.steps - 1)
        )
        assert stats.drafts <= stats.steps
        if right_of_eight == 8:
            assert stats.accepted_tokens == stats.drafted_tokens
            assert stats.steps == 1 + 4  # the prompt's, and 29 tokens, 8 a step
        if right_of_eight == 0:
            assert stats.accepted_tokens == 0


@pytest.mark.parametrize("max_tokens", range(1, 20))
def test_an_answer_ends_at_its_limit_inside_a_run_of_right_guesses(max_tokens: int) -> None:
    engine, _ = make_engine(speculation=Knowing((None,), 64, 8))
    got = run(engine, [request("a", PROMPT, max_tokens)])["a"]
    assert (got.token_ids, got.finish_reason) == (
        answer(PROMPT, Generation(max_tokens), (None,), 64)[0],
        "length",
    )
    assert live_blocks(engine) == 0


@pytest.mark.parametrize("place", range(9))
def test_an_answer_ends_at_its_stop_token_inside_a_run_of_right_guesses(place: int) -> None:
    whole = answer(PROMPT, Generation(20), (None,), 64)[0]
    stop = whole[place]
    engine, _ = make_engine(speculation=Knowing((None,), 64, 8))
    got = run(engine, [request("a", PROMPT, 20, stop_token_ids=(stop,))])["a"]
    assert got.token_ids == whole[: whole.index(stop) + 1]
    assert got.finish_reason == "stop"


@pytest.mark.parametrize("right_of_eight", [0, 5, 8])
def test_nothing_guessed_is_ever_found_in_the_cache(right_of_eight: int) -> None:
    # The second prompt is the first with its answer: what it finds must be what was said.
    engine, _ = make_engine(speculation=Knowing((None,), 64, right_of_eight))
    said = run(engine, [request("a", PROMPT, 27)])["a"].token_ids
    again = (*PROMPT, *said, 60)
    got = run(engine, [request("b", again, 9)])["b"]
    assert got.token_ids == answer(again, Generation(9), (None,), 64)[0]
    assert got.last is not None
    assert got.last.usage.cached_tokens == 36  # of 38, whose last three full blocks answers filled


@pytest.mark.parametrize("right_of_eight", [0, 4, 7])
@pytest.mark.parametrize("windows", [(None,), (None, 5)], ids=["full", "windowed"])
def test_twins_that_guess_wrong_share_what_they_finish_and_read_it_from_where_it_is(
    windows: tuple[int | None, ...], right_of_eight: int
) -> None:
    # Whoever fills a block second gives back the own one, for the first twin's of the same content;
    # a guess has made room beyond it by then. Others write into what was given back at once.
    expected = answer(PROMPT, Generation(20), windows, 32)[0]
    engine, _ = make_engine(
        windows=windows,
        num_blocks=(34,) * len(windows),
        block_size=2,
        max_context_tokens=32,
        speculation=Knowing(windows, 32, right_of_eight),
    )
    twins = [request(name, PROMPT, 20) for name in ("first", "second", "third")]
    got = run(engine, [*twins, request("other", PROMPT[::-1], 20)])
    assert [got[twin.id].token_ids for twin in twins] == [expected] * 3
    assert got["other"].token_ids == answer(PROMPT[::-1], Generation(20), windows, 32)[0]


def test_unusable_logits_behind_a_wrong_guess_are_nobodys_business() -> None:
    whole = answer(PROMPT, Generation(20), (None,), 64)[0]
    engine, backend = make_engine(speculation=Knowing((None,), 64, 0))
    # A wrong guess is a token one above the right one: take one that is never right.
    backend.poison = next(t + 1 for t in whole[1:] if t + 1 not in whole and t + 1 not in PROMPT)
    assert run(engine, [request("a", PROMPT, 20)])["a"].token_ids == whole


def test_unusable_logits_behind_a_right_guess_end_the_answer_where_they_would_have() -> None:
    whole = answer(PROMPT, Generation(20), (None,), 64)[0]
    engine, backend = make_engine(speculation=Knowing((None,), 64, 8))
    backend.poison = whole[4]
    got = run(engine, [request("a", PROMPT, 20), request("b", PROMPT[:5], 20)])
    assert got["a"].token_ids == whole[: whole.index(whole[4]) + 1]
    assert got["a"].finish_reason == "error"


def test_guesses_leave_half_of_a_step_to_prompts_and_take_no_blocks_from_anybody() -> None:
    engine, backend = make_engine(
        speculation=Knowing((None,), 64, 8), step_tokens=8, num_blocks=(12,), max_context_tokens=40
    )
    answers: dict[str, Answer] = {}
    engine.add(request("talking", [1], 25))
    step(engine, answers)
    engine.add(request("prompt", PROMPT, 4))
    step(engine, answers)
    # The answer's token and (8 - 1) // 2 guesses; four of the prompt.
    assert len(answers["talking"].token_ids) == 1 + 1 + 3
    assert backend.batches[1] == 8
    while engine.has_work:
        step(engine, answers)
    assert engine.stats().preemptions == 0


def test_without_any_cache_nothing_is_guessed() -> None:
    engine, _ = make_engine(speculation=Knowing((None,), 64, 8), use_cache=False)
    run(engine, [request("a", PROMPT, 5)])
    assert engine.stats().drafted_tokens == 0


def test_guessing_can_be_stopped_and_begun_again_between_requests() -> None:
    engine, _ = make_engine(speculation=Knowing((None,), 64, 8))
    steps = []
    for number, speculates in enumerate((True, False, True)):
        engine.speculates = speculates
        before = engine.stats().steps
        got = run(engine, [request(str(number), PROMPT, 25)])[str(number)]
        assert got.token_ids == answer(PROMPT, Generation(25), (None,), 64)[0]
        steps.append(engine.stats().steps - before)
    assert steps == [4, 25, 4]


def test_what_a_pass_costs_is_learnt_whatever_was_believed() -> None:
    chance = np.random.default_rng(0)
    for fixed_s, token_s in ((3e-3, 0.4e-3), (10e-3, 0.1e-3), (0.2e-3, 2e-3)):
        cost = PassCost()
        for _ in range(400):
            num_tokens = int(chance.choice([1, 2, 4, 8]))
            seconds = (fixed_s + token_s * num_tokens) * chance.uniform(0.95, 1.05)
            interrupted = chance.random() < 0.02
            cost.observe(num_tokens, seconds * (20 if interrupted else 1))
        for num_tokens in (1, 2, 4, 8):
            assert cost.expected_s(num_tokens) == pytest.approx(
                fixed_s + token_s * num_tokens, rel=0.15
            )


def test_a_number_of_tokens_that_kernels_do_not_like_is_found_out() -> None:
    cost = PassCost()
    for _ in range(100):
        for num_tokens, seconds in ((1, 3.7e-3), (2, 3.9e-3), (3, 5.1e-3), (4, 4.2e-3)):
            cost.observe(num_tokens, seconds)
    assert cost.expected_s(3) > cost.expected_s(4)


def after(passes: list[tuple[int, float]]) -> Speculation:
    speculation = Speculation()
    for num_tokens, seconds in passes * 100:
        speculation.observe(num_tokens, seconds)
    return speculation


def test_where_memory_bounds_a_pass_unlikely_guesses_pay_and_where_arithmetic_does_none() -> None:
    by_memory = after([(1, 1.00), (2, 1.01), (4, 1.03), (8, 1.07)])
    by_arithmetic = after([(1, 1.0), (2, 2.0), (4, 4.0), (8, 8.0)])
    assert by_memory.num_worthwhile(1, [0.3, 0.1, 0.06]) >= 2
    assert by_arithmetic.num_worthwhile(1, [0.9, 0.8, 0.7]) == 0


def test_few_answers_get_guesses_and_many_do_not() -> None:
    speculation = after([(1, 3.7), (2, 4.1), (8, 6.5), (32, 17.0), (64, 31.0)])
    chances = [0.6, 0.5, 0.4, 0.3]
    counts = [speculation.num_worthwhile(num_answers, chances) for num_answers in (1, 8, 32, 56)]
    assert counts[0] > 0
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 0


@pytest.fixture(scope="module")
def models() -> tuple[LLM, LLM]:
    """SmolLM2 with guesses and without."""
    return (
        LLM("smollm2", kv_memory_bytes=128 * MIB),
        LLM("smollm2", kv_memory_bytes=128 * MIB, speculation=False),
    )


CODE = (
    "def area(width, height):\n    return width * height\n\n"
    "def volume(width, height, depth):\n    return width * height * depth\n\n"
)


@pytest.mark.parametrize(
    ("prompt", "parameters"),
    [
        (CODE + CODE + "def area(width,", {"max_tokens": 40}),
        (CODE + "def area(", {"max_tokens": 40, "temperature": 0.7, "seed": 5}),
        (CODE + CODE, {"max_tokens": 40, "temperature": 1.0, "top_p": 0.9, "seed": 6}),
        (CODE + CODE + "def area(", {"max_tokens": 40, "stop": "* height"}),
        (CODE + CODE + "def area(", {"max_tokens": 40, "stop": ["\n\n", "depth"]}),
        ("Name ten animals.", {"max_tokens": 24}),
    ],
)
def test_a_real_model_gives_the_same_tokens_text_and_end(
    models: tuple[LLM, LLM], prompt: str, parameters: dict[str, object]
) -> None:
    guessing, plain = models
    outputs = list(guessing.stream(prompt, **parameters))
    expected = plain.generate(prompt, **parameters)[0]
    assert [i for output in outputs for i in output.token_ids] == list(expected.token_ids)
    assert "".join(output.text for output in outputs) == expected.text
    assert outputs[-1].finish_reason == expected.finish_reason
    assert outputs[-1].usage.completion_tokens == expected.usage.completion_tokens


def test_a_real_model_that_repeats_its_prompt_takes_fewer_steps(
    models: tuple[LLM, LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    guessing, plain = models
    # What passes cost is believed, not measured: a busy machine may find that no guess pays.
    monkeypatch.setattr(guessing.loaded.engine._speculation, "_cost", PassCost())
    monkeypatch.setattr(PassCost, "observe", lambda self, num_tokens, seconds: None)
    before = guessing.loaded.engine.stats()
    guessing.generate(CODE * 3, max_tokens=48)
    stats = guessing.loaded.engine.stats()
    accepted_tokens = stats.accepted_tokens - before.accepted_tokens
    assert accepted_tokens > 0
    assert stats.steps - before.steps == 48 - accepted_tokens
    plain.generate(CODE * 3, max_tokens=48)
    assert plain.loaded.engine.stats().drafted_tokens == 0


def test_real_answers_in_company_are_those_alone(models: tuple[LLM, LLM]) -> None:
    guessing, plain = models
    prompts = [CODE + CODE[:number] for number in (20, 50, 80, 110)]
    together = guessing.generate(prompts, max_tokens=24)
    alone = [plain.generate(prompt, max_tokens=24)[0] for prompt in prompts]
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
