"""The claims of other engines' bug reports, and of our own scheduler, one by one."""

import pytest

from kvikk.backends.base import SamplingParameters
from kvikk.engine.requests import Generation
from kvikk.errors import BusyError, RequestError
from tests.engine.driver import Answer, live_blocks, make_engine, request, run, step
from tests.engine.exact_backend import answer

LONG = tuple(range(1, 41))


def alone(prompt: tuple[int, ...], generation: Generation, context: int = 64) -> list[int]:
    return answer(prompt, generation, (None,), context)[0]


def test_a_prompt_gets_the_same_answer_cold_and_from_the_cache() -> None:
    # vllm#40896, #54490
    engine, _ = make_engine()
    cold = run(engine, [request("cold", LONG)])["cold"]
    warm = run(engine, [request("warm", LONG)])["warm"]
    assert warm.token_ids == cold.token_ids == alone(LONG, Generation(8))
    assert cold.last is not None
    assert warm.last is not None
    assert cold.last.usage.cached_tokens == 0
    assert warm.last.usage.cached_tokens == 36  # 40 tokens, blocks of 4, one token must run


def test_a_preempted_requests_own_recompute_is_never_a_hit() -> None:
    # vllm#25780: 9 blocks hold one of these at full length; random prompts, so no true hit exists.
    engine, backend = make_engine(num_blocks=(9,), max_context_tokens=36)
    requests = [request("a", range(10), None), request("b", range(30, 40), None)]
    answers = run(engine, requests)
    stats = engine.stats()
    assert stats.preemptions > 0
    assert backend.computed_tokens > 2 * 35  # something was computed twice
    assert stats.prefix_hit_tokens == 0
    for name in ("a", "b"):
        last = answers[name].last
        assert last is not None
        assert last.usage.cached_tokens == 0
        assert last.usage.completion_tokens == 26


def test_a_request_is_looked_up_once_in_the_figures_however_often_it_is_scheduled() -> None:
    # vllm#43736
    engine, _ = make_engine(num_blocks=(9,), max_context_tokens=36)
    run(engine, [request(name, LONG[:10], None, salt=name.encode()) for name in "abcd"])
    stats = engine.stats()
    assert stats.preemptions > 0
    assert stats.prefix_query_tokens == stats.prompt_tokens == 4 * 10


@pytest.mark.parametrize("num_tokens", [36, 37, 200])
def test_a_prompt_that_can_never_fit_is_refused_at_once(num_tokens: int) -> None:
    # inference-sim#963
    engine, _ = make_engine(num_blocks=(9,), max_context_tokens=300)
    with pytest.raises(RequestError, match=f"{num_tokens} tokens.*the limit is 36"):
        engine.add(request("a", [1] * num_tokens))
    assert not engine.has_work


def test_a_prompt_that_just_fits_is_served() -> None:
    engine, _ = make_engine(num_blocks=(9,), max_context_tokens=300)
    last = run(engine, [request("a", [1] * 35, None)])["a"].last
    assert last is not None
    assert (last.finish_reason, last.usage.completion_tokens) == ("length", 1)


def test_an_empty_prompt_and_unknown_tokens_are_refused() -> None:
    engine, _ = make_engine()
    for prompt in ((), (1, 61), (-1, 1)):
        with pytest.raises(RequestError):
            engine.add(request("a", prompt))


@pytest.mark.parametrize("num_tokens", [1, 3, 4, 5, 8, 9, 16, 17])
def test_answers_are_right_at_the_edges_of_blocks(num_tokens: int) -> None:
    # nano-vllm#144, #211, #217: fully cached prompts, preemption then a hit, the block's next token
    engine, _ = make_engine(num_blocks=(7,), max_context_tokens=28)
    prompt = LONG[:num_tokens]
    for _ in range(2):
        answers = run(engine, [request("a", prompt, 9), request("b", prompt, 9)])
        expected = alone(prompt, Generation(9), 28)
        assert answers["a"].token_ids == answers["b"].token_ids == expected


def test_identical_prompts_that_arrive_together_are_computed_once() -> None:
    engine, backend = make_engine(step_tokens=8, max_running=6)
    answers = run(engine, [request(str(i), LONG, 1) for i in range(6)])
    # One computes all 40; each of the others the last block's worth that no hit may cover.
    assert backend.computed_tokens == 40 + 5 * 4
    assert {tuple(got.token_ids) for got in answers.values()} == {tuple(alone(LONG, Generation(1)))}


def test_a_request_that_waits_for_blocks_does_not_hold_up_those_behind_it() -> None:
    engine, _ = make_engine(step_tokens=16)
    answers: dict[str, Answer] = {}
    for item in (request("first", LONG, 4), request("same", LONG, 4), request("short", [60], 1)):
        engine.add(item)
    for _ in range(3):  # 16, 16, and 8 of the first, which leaves room in the budget
        step(engine, answers)
    assert answers["short"].finish_reason == "length"
    assert "same" not in answers


@pytest.mark.parametrize("salts", [(b"x", b"y"), (b"", b"x")])
def test_different_salts_share_nothing(salts: tuple[bytes, bytes]) -> None:
    engine, backend = make_engine()
    requests = [request(str(i), LONG, 1, salt=salt) for i, salt in enumerate(salts)]
    run(engine, requests)
    assert backend.computed_tokens == 80
    assert engine.stats().prefix_hit_tokens == 0


def test_without_prefix_caching_nothing_is_shared_and_answers_are_the_same() -> None:
    engine, backend = make_engine(prefix_caching=False)
    answers = run(engine, [request("a", LONG, 3), request("b", LONG, 3)])
    assert backend.computed_tokens == 2 * 42
    assert answers["a"].token_ids == answers["b"].token_ids == alone(LONG, Generation(3))


def test_without_any_cache_everything_is_computed_again_for_every_token() -> None:
    engine, backend = make_engine(use_cache=False)
    got = run(engine, [request("a", LONG, 5)])["a"]
    assert got.token_ids == alone(LONG, Generation(5))
    assert backend.computed_tokens == 40 + 41 + 42 + 43 + 44


@pytest.mark.parametrize("end", ["abort", "failure"])
def test_when_the_owner_of_awaited_blocks_ends_the_waiting_go_on_by_themselves(end: str) -> None:
    # vllm#46283: no wait outlives what it waits for
    engine, backend = make_engine(step_tokens=8)
    answers: dict[str, Answer] = {}
    for name in ("owner", "second", "third"):
        engine.add(request(name, LONG, 2))
    step(engine, answers)
    step(engine, answers)
    if end == "abort":
        engine.abort("owner")
    else:
        backend.failure = OSError("device lost")
    while engine.has_work:
        step(engine, answers)
    assert answers["owner"].finish_reason == {"abort": "abort", "failure": "error"}[end]
    for name in ("second", "third"):
        assert answers[name].token_ids == alone(LONG, Generation(2))
    assert live_blocks(engine) == 0


def test_a_reset_while_blocks_are_awaited_says_what_it_did_and_nobody_hangs() -> None:
    # vllm#12284
    engine, _ = make_engine(step_tokens=8)
    answers: dict[str, Answer] = {}
    for name in ("owner", "second"):
        engine.add(request(name, LONG, 2))
    step(engine, answers)
    step(engine, answers)
    result = engine.reset_cache()
    assert not result.complete
    assert result.held_blocks == live_blocks(engine) == 4
    while engine.has_work:
        step(engine, answers)
    assert answers["second"].token_ids == alone(LONG, Generation(2))
    last = answers["second"].last
    assert last is not None
    assert last.usage.cached_tokens == 0


def test_abort_frees_everything_at_once_wherever_the_request_stands() -> None:
    engine, _ = make_engine(step_tokens=8, max_running=1)
    answers: dict[str, Answer] = {}
    for name, prompt in (("running", LONG), ("waiting", LONG[::-1])):
        engine.add(request(name, prompt))
    step(engine, answers)
    assert engine.abort("waiting")
    assert engine.abort("running")
    assert not engine.abort("running")
    assert live_blocks(engine) == 0
    step(engine, answers)
    assert {name: got.finish_reason for name, got in answers.items()} == {
        "running": "abort",
        "waiting": "abort",
    }
    assert not engine.has_work


def test_a_failing_step_ends_its_requests_and_the_engine_lives_on() -> None:
    engine, backend = make_engine()
    backend.failure = MemoryError("out of memory")
    failed = run(engine, [request("a", LONG)])["a"].last
    assert failed is not None
    assert failed.finish_reason == "error"
    assert "out of memory" in (failed.error or "")
    assert live_blocks(engine) == 0
    # Garbage was written to the failed step's blocks: nobody may find it.
    after = run(engine, [request("b", LONG)])["b"]
    assert after.token_ids == alone(LONG, Generation(8))


def test_unusable_logits_end_only_their_own_request() -> None:
    engine, backend = make_engine()
    backend.poison = 50
    answers = run(engine, [request("bad", [1, 2, 50]), request("good", LONG)])
    assert answers["bad"].finish_reason == "error"
    assert answers["good"].token_ids == alone(LONG, Generation(8))


def test_a_long_prompt_does_not_stall_running_answers() -> None:
    engine, backend = make_engine(step_tokens=8)
    answers: dict[str, Answer] = {}
    engine.add(request("talking", [1], 20))
    step(engine, answers)
    engine.add(request("long", LONG, 1))
    while engine.has_work:
        before = len(answers["talking"].token_ids)
        talking = answers["talking"].last is None
        step(engine, answers)
        assert len(answers["talking"].token_ids) == before + talking
    assert max(backend.batches) == 8


def test_a_step_holds_decodes_and_prefill_pieces_in_one_batch() -> None:
    engine, backend = make_engine(step_tokens=8)
    run(engine, [request("a", [1], 6), request("b", LONG[:20], 1)])
    # a's prompt and 7 of b; a's decode and 7 of b; a's decode and b's last 6; a alone.
    assert backend.batches == [8, 8, 7, 1, 1, 1]


def test_a_short_prompt_behind_a_long_one_does_not_wait_for_its_end() -> None:
    engine, _ = make_engine(step_tokens=8)
    answers: dict[str, Answer] = {}
    engine.add(request("long", LONG, 1))
    step(engine, answers)
    engine.add(request("short", [50, 51, 52, 53], 1))
    step(engine, answers)  # four of the long one, and the whole of the short one
    assert answers["short"].finish_reason == "length"
    assert "long" not in answers
    for _ in range(4):  # 12 of 40 are computed; it now has every step to itself
        step(engine, answers)
    assert answers["long"].finish_reason == "length"


def test_short_prompts_without_end_leave_a_long_one_half_of_every_step() -> None:
    engine, _ = make_engine(step_tokens=8, num_blocks=(128,))
    answers: dict[str, Answer] = {}
    engine.add(request("long", LONG, 1))
    steps = 0
    while "long" not in answers:
        for number in range(3):
            prompt = [number, steps, 7, 8, 9, 10]
            engine.add(request(f"{steps}-{number}", prompt, 1))
        step(engine, answers)
        steps += 1
        assert steps <= 14, "40 tokens, at least half of what answers leave a step"


def test_of_prompts_that_came_together_the_shortest_are_answered_first() -> None:
    engine, _ = make_engine(step_tokens=8)
    lengths = {"a": 30, "b": 20, "c": 10, "d": 5}
    for number, (name, length) in enumerate(lengths.items()):
        engine.add(request(name, [number, *LONG[: length - 1]], 1))
    answers: dict[str, Answer] = {}
    finished: list[str] = []
    while engine.has_work:
        step(engine, answers)
        finished += sorted(name for name in answers if name not in finished)
    assert finished[:2] == ["d", "c"]


def test_the_newest_gives_way_and_continues_where_it_was() -> None:
    engine, _ = make_engine(num_blocks=(9,), max_context_tokens=36)
    answers: dict[str, Answer] = {}
    chance = SamplingParameters(temperature=1.0)
    generations = {
        "old": Generation(26, chance, seed=1),
        "new": Generation(26, chance, seed=2),
    }
    prompts = {"old": tuple(range(10)), "new": tuple(range(30, 40))}
    for name, generation in generations.items():
        engine.add(request(name, prompts[name], 26, sampling=chance, seed=generation.seed))
    finished = []
    while engine.has_work:
        step(engine, answers)
        finished += [n for n, got in answers.items() if got.last and n not in finished]
    assert engine.stats().preemptions > 0
    assert finished == ["old", "new"]
    for name, generation in generations.items():
        assert answers[name].token_ids == alone(prompts[name], generation, 36)


def test_one_that_gives_way_to_an_older_prompt_leaves_the_step_it_was_in() -> None:
    # "old" waits for a block of "first"; meanwhile "new" starts to talk, and talks on beside old's
    # prompt. A decode is planned before a prompt's next piece: when that piece finds the pool full,
    # the decode is in the step already.
    engine, backend = make_engine(
        num_blocks=(19,), step_tokens=5, max_running=3, max_context_tokens=72
    )
    first, old = LONG[:4], LONG[:4] + LONG[::-1] + LONG[:20]
    answers = run(
        engine, [request("first", first, 1), request("old", old, 4), request("new", [60], 40)]
    )
    assert engine.stats().preemptions > 0
    assert answers["old"].token_ids == alone(old, Generation(4), 72)
    assert answers["new"].token_ids == alone((60,), Generation(40), 72)
    assert max(backend.batches) == 5


def test_the_oldest_gets_blocks_that_newer_ones_share_among_themselves() -> None:
    # Two clones at the same place own no block alone: only with both of them one comes free.
    engine, _ = make_engine(num_blocks=(8,), block_size=1, step_tokens=8, max_context_tokens=8)
    run(engine, [request("warm", [5], 1)])
    clones = [request("b", [5], 30), request("c", [5], 30)]
    answers = run(engine, [request("a", [30, 31], 30), *clones])
    assert answers["a"].token_ids == alone((30, 31), Generation(30), 8)
    assert answers["b"].token_ids == answers["c"].token_ids == alone((5,), Generation(30), 8)


def test_a_long_prompt_is_not_let_in_on_the_blocks_of_its_first_piece() -> None:
    engine, backend = make_engine(num_blocks=(12,), step_tokens=8, max_context_tokens=44)
    run(engine, [request("a", LONG[:20], 4), request("b", LONG[::-1][:30], 4)])
    assert engine.stats().preemptions == 0
    assert backend.computed_tokens == 23 + 33


def test_windows_give_back_blocks_so_that_a_small_pool_serves_a_long_answer() -> None:
    engine, _ = make_engine(
        windows=(8,), num_blocks=(5,), step_tokens=8, max_context_tokens=200, max_running=4
    )
    got = run(engine, [request("a", LONG, 100)])["a"]
    assert got.token_ids == answer(LONG, Generation(100), (8,), 200)[0]


def test_a_full_queue_is_busy_and_a_used_id_is_refused() -> None:
    engine, _ = make_engine(max_running=2, max_queue=1)
    for name in "abc":
        engine.add(request(name, LONG))
    with pytest.raises(BusyError):
        engine.add(request("d", LONG))
    run(engine)
    engine.add(request("d", LONG))
    with pytest.raises(RequestError, match="already running"):
        engine.add(request("d", LONG))


def test_seeded_answers_do_not_depend_on_the_load() -> None:
    chance = SamplingParameters(temperature=1.0, top_k=20, top_p=0.9)
    quiet, _ = make_engine()
    expected = run(quiet, [request("x", LONG[:9], 20, sampling=chance, seed=5)])["x"].token_ids
    busy, _ = make_engine(num_blocks=(14,), step_tokens=6, max_running=5, max_context_tokens=50)
    crowd = [request(f"c{i}", LONG[i : i + 11], 20, sampling=chance) for i in range(6)]
    seeded = request("x", LONG[:9], 20, sampling=chance, seed=5)
    answers = run(busy, [*crowd[:3], seeded, *crowd[3:]])
    assert busy.stats().preemptions > 0
    assert answers["x"].token_ids == expected


def test_unseeded_answers_differ() -> None:
    engine, _ = make_engine()
    chance = SamplingParameters(temperature=1.0)
    answers = run(engine, [request(str(i), LONG, 10, sampling=chance) for i in range(4)])
    assert len({tuple(got.token_ids) for got in answers.values()}) == 4


def test_totals_add_up() -> None:
    engine, backend = make_engine()
    answers = run(engine, [request(str(i), LONG[: 5 + i], 4 + i) for i in range(5)])
    stats = engine.stats()
    assert stats.prompt_tokens == 5 + 6 + 7 + 8 + 9
    assert stats.generated_tokens == sum(len(got.token_ids) for got in answers.values())
    assert stats.computed_tokens == backend.computed_tokens
    assert stats.steps == len(backend.batches)
    assert stats.finished_requests == {"length": 5}
    assert (stats.running_requests, stats.waiting_requests) == (0, 0)
