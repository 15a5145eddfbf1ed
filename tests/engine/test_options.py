"""Penalties, biases, least lengths and log-probabilities: by their definitions, in any batch."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from kvikk.backends.base import SamplingParameters
from kvikk.engine.edits import LogitsEditor
from kvikk.engine.requests import Generation
from kvikk.errors import RequestError
from tests.engine.driver import make_engine, request, run
from tests.engine.exact_backend import VOCABULARY_SIZE, answer, edited
from tests.engine.guessing import Knowing

PROMPT = tuple(range(1, 11))
OPTIONS = {
    "bias": Generation(12, logit_bias=((3, 5.0), (17, -100.0))),
    "repetition": Generation(12, repetition_penalty=1.4),
    "presence": Generation(12, presence_penalty=0.9),
    "frequency": Generation(12, frequency_penalty=0.7),
    "least": Generation(12, min_tokens=7, stop_token_ids=tuple(range(20, 60))),
    "all": Generation(
        12,
        SamplingParameters(1.3, top_k=30, min_p=0.01),
        seed=4,
        logit_bias=((5, 2.0),),
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=-0.3,
        min_tokens=3,
        stop_token_ids=(5, 6, 7),
    ),
}


def test_the_oracle_edits_as_transformers_does() -> None:
    generation = Generation(
        9, logit_bias=((3, 2.0), (40, -1.0)), repetition_penalty=1.3, min_tokens=5,
        stop_token_ids=(2, 9),
    )  # fmt: skip
    generated = [3, 8, 8]
    logits = np.random.default_rng(0).standard_normal(VOCABULARY_SIZE).astype(np.float32) * 4
    ids = torch.tensor([[*PROMPT, *generated]])
    theirs = LogitsProcessorList(
        [
            SequenceBiasLogitsProcessor([[[3], 2.0], [[40], -1.0]]),
            RepetitionPenaltyLogitsProcessor(1.3),
            MinNewTokensLengthLogitsProcessor(len(PROMPT), 5, torch.tensor([2, 9])),
        ]
    )(ids, torch.tensor(logits[None].copy()))
    ours = edited(logits, PROMPT, generated, generation)
    np.testing.assert_allclose(ours, theirs[0].numpy(), rtol=1e-6)


@pytest.mark.parametrize("right_of_eight", [None, 0, 5, 8])
@pytest.mark.parametrize("name", OPTIONS)
def test_answers_follow_the_definitions_guessed_or_not(
    name: str, right_of_eight: int | None
) -> None:
    generation = OPTIONS[name]
    speculation = None if right_of_eight is None else Knowing((None,), 64, right_of_eight)
    engine, _ = make_engine(speculation=speculation, max_rows=16)
    asked = [request(str(i), PROMPT[i:], None) for i in range(3)]
    asked = [type(one)(one.id, one.prompt_token_ids, generation, one.salt) for one in asked]
    got = run(engine, asked)
    for one in asked:
        expected = answer(one.prompt_token_ids, generation, (None,), 64)
        assert (got[one.id].token_ids, got[one.id].finish_reason) == expected


def test_the_options_matter() -> None:
    plain = answer(PROMPT, Generation(12), (None,), 64)[0]
    for name, generation in OPTIONS.items():
        if name not in ("least", "repetition"):
            assert answer(PROMPT, generation, (None,), 64)[0] != plain, name


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    return torch.log_softmax(torch.tensor(logits).double(), -1).numpy()


@pytest.mark.parametrize("step_tokens", [4, 16])
@pytest.mark.parametrize("right_of_eight", [None, 7])
def test_logprobs_of_prompt_and_answer_are_the_models_own(
    step_tokens: int, right_of_eight: int | None
) -> None:
    generation = Generation(9, repetition_penalty=1.5, num_logprobs=2, num_prompt_logprobs=3)
    told: list[NDArray[np.float32]] = []
    expected, _ = answer(PROMPT, generation, (None,), 64, told=told)
    speculation = None if right_of_eight is None else Knowing((None,), 64, right_of_eight)
    engine, _ = make_engine(step_tokens=step_tokens, max_running=4, speculation=speculation)
    # What is cached does not keep a prompt from being told of.
    run(engine, [request("before", PROMPT)])
    others = [request(f"o{i}", PROMPT[: 3 + i], 6) for i in range(3)]
    asked = type(others[0])("a", PROMPT, generation)
    got = run(engine, [*others, asked])["a"]
    assert got.token_ids == expected
    assert got.last is not None
    assert got.last.usage.cached_tokens == 0
    assert got.prompt_logprobs is not None
    tokens = [*PROMPT, *expected]
    known = [*got.prompt_logprobs, *got.logprobs]
    assert [one.token_id for one in known] == tokens[1:]
    for position, one in enumerate(known):
        logprobs = log_softmax(told[position])
        assert one.logprob == pytest.approx(logprobs[one.token_id], rel=1e-5)
        order = np.argsort(-logprobs, kind="stable").tolist()
        assert one.rank == 1 + order.index(one.token_id)
        count = 3 if position < len(PROMPT) - 1 else 2
        assert [token_id for token_id, _ in one.top] == order[:count]


@pytest.mark.parametrize(
    ("make", "parameter"),
    [
        (lambda: Generation(sampling=SamplingParameters(1.0, min_p=1.5)), "min_p"),
        (lambda: Generation(repetition_penalty=0), "repetition_penalty"),
        (lambda: Generation(frequency_penalty=float("nan")), "frequency_penalty"),
        (lambda: Generation(3, min_tokens=4), "min_tokens"),
        (lambda: Generation(num_logprobs=21), "logprobs"),
        (lambda: Generation(choices=0), "n"),
        (lambda: Generation(logit_bias=((1, float("inf")),)), "logit_bias"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], Generation], parameter: str) -> None:
    with pytest.raises(RequestError) as refusal:
        make()
    assert refusal.value.parameter == parameter


def test_a_bias_for_a_token_that_is_not_there_is_refused() -> None:
    engine, _ = make_engine()
    with pytest.raises(RequestError, match="logit_bias names token id 61"):
        engine.check(request("a", PROMPT, logit_bias=((61, 1.0),)))


def test_biases_may_be_many() -> None:
    biases = tuple((token_id, token_id / 10) for token_id in range(1000))
    editor = LogitsEditor.for_request(Generation(logit_bias=biases), 1, frozenset())
    assert editor is not None
    edit = editor.edit([1])
    assert edit is not None
    assert edit.token_ids.tolist() == list(range(1000))
    np.testing.assert_array_equal(edit.biases, np.float32([bias for _, bias in biases]))


def test_of_those_that_wait_the_first_by_priority_goes_first() -> None:
    engine, _ = make_engine(max_running=1)
    priorities = {"a": 0, "late": 5, "middle": 0, "first": -3}
    asked = [
        replace(request(name, PROMPT, 3), priority=priority)
        for name, priority in priorities.items()
    ]
    answers = run(engine, asked)
    finished = sorted(answers, key=lambda name: answers[name].last.timings.finished_s)
    assert finished == ["first", "a", "middle", "late"]
    assert len({tuple(one.token_ids) for one in answers.values()}) == 1
