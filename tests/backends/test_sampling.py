"""Sampling against the plainest way to write it: sort everything, add everything up."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from kvikk.backends.base import SamplingParameters
from kvikk.backends.sampling import LogitsError, largest, sample


def slow_distribution(logits: NDArray[np.float32], choice: SamplingParameters) -> dict[int, float]:
    """Token to probability, by the definition: temperature, then top-k, then top-p."""
    order = sorted(range(len(logits)), key=lambda token: (-float(logits[token]), token))
    if choice.temperature == 0:
        return {order[0]: 1.0}
    peak = float(logits[order[0]])
    weights = {t: math.exp((float(logits[t]) - peak) / choice.temperature) for t in order}
    if choice.top_k:
        weights = dict(list(weights.items())[: choice.top_k])
    total = math.fsum(weights.values())
    kept: dict[int, float] = {}
    for token, weight in weights.items():
        if math.fsum(kept.values()) >= choice.top_p * total:
            break
        kept[token] = weight
    total = math.fsum(kept.values())
    return {token: weight / total for token, weight in kept.items() if weight > 0}


def draw(logits: NDArray[np.float32], choice: SamplingParameters, uniform: float) -> int:
    return int(sample(logits[None], [choice], np.array([uniform]))[0])


LOGITS = st.lists(
    st.one_of(st.integers(-6, 6).map(lambda half: half / 2), st.just(-math.inf)),
    min_size=1,
    max_size=300,
).filter(lambda values: max(values) > -math.inf)
CHOICES = st.builds(
    SamplingParameters,
    temperature=st.sampled_from([0.0, 0.25, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 2, 7, 400]),
    # Away from sums that these logits can make exactly, where rounding may decide either way.
    top_p=st.sampled_from([1.0, 0.9173, 0.5119, 0.0371]),
)


@given(LOGITS, CHOICES, st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=8))
def test_only_tokens_that_the_definition_keeps_are_chosen(
    values: list[float], choice: SamplingParameters, uniforms: list[float]
) -> None:
    logits = np.array(values, np.float32)
    allowed = slow_distribution(logits, choice)
    for uniform in (*uniforms, 0.0, 1 - 2**-53):
        assert draw(logits, choice, uniform) in allowed


@given(LOGITS, CHOICES)
@settings(max_examples=60)
def test_evenly_spread_uniforms_give_each_token_its_share(
    values: list[float], choice: SamplingParameters
) -> None:
    logits = np.array(values, np.float32)
    count = 1000
    rows = np.broadcast_to(logits, (count, len(logits)))
    chosen = sample(rows, [choice] * count, (np.arange(count) + 0.5) / count)
    counts = np.bincount(chosen, minlength=len(logits))
    expected = slow_distribution(logits, choice)
    for token in range(len(logits)):
        # Each token owns one interval of [0, 1): its count is off by at most one at either end.
        assert abs(counts[token] - count * expected.get(token, 0.0)) <= 1.01


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=400), st.integers(0, 420))
def test_the_largest_are_found_as_by_sorting(values: list[int], count: int) -> None:
    order = sorted(range(len(values)), key=lambda index: (-values[index], index))
    assert largest(np.array(values, np.float32), count).tolist() == order[:count]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "choice",
    [
        SamplingParameters(1.0),
        SamplingParameters(0.7, top_k=40),
        SamplingParameters(1.3, top_p=0.9),
        SamplingParameters(1.0, top_k=200, top_p=0.8),
    ],
)
def test_frequencies_over_a_large_vocabulary_follow_the_distribution(
    choice: SamplingParameters, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    logits = (generator.standard_normal(20_000) * 2.5).astype(np.float32)
    expected = slow_distribution_fast(logits, choice)
    count = 2000
    chosen = sample(
        np.broadcast_to(logits, (count, len(logits))), [choice] * count, generator.random(count)
    )
    # Chi-square over 20 bins of about equal probability, made of tokens in order of probability.
    order = np.argsort(-expected, kind="stable")
    edges = np.searchsorted(np.cumsum(expected[order]), np.arange(1, 20) / 20)
    place = np.empty(len(order), np.int64)
    place[order] = np.searchsorted(edges, np.arange(len(order)), side="left")
    wanted = np.bincount(place, expected, minlength=20) * count
    seen = np.bincount(place[chosen], minlength=20)
    assert (expected[chosen] > 0).all()
    full = wanted > 5
    statistic = ((seen[full] - wanted[full]) ** 2 / wanted[full]).sum()
    assert statistic < 50  # 19 degrees of freedom: exceeded once in 7,000 draws


def slow_distribution_fast(
    logits: NDArray[np.float32], choice: SamplingParameters
) -> NDArray[np.float64]:
    """The same definition on float64 arrays, for vocabularies too long for dictionaries."""
    order = np.argsort(-logits, kind="stable")
    weights = np.exp((logits[order].astype(float) - logits.max()) / choice.temperature)
    weights[choice.top_k or len(weights) :] = 0
    before = np.cumsum(weights) - weights
    weights[before >= choice.top_p * weights.sum()] = 0
    probabilities = np.zeros(len(logits))
    probabilities[order] = weights / weights.sum()
    return probabilities


def test_greedy_takes_the_lowest_id_of_equal_logits() -> None:
    logits = np.array([[1, 5, 5, 2], [7, 7, 7, 7]], np.float32)
    chosen = sample(logits, [SamplingParameters()] * 2, np.zeros(2))
    assert chosen.tolist() == [1, 0]


@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e-3])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    assert draw(logits, SamplingParameters(temperature), 0.999) == logits.argmax()


def test_a_huge_temperature_is_even() -> None:
    logits = np.array([-50, 3, 0, 8], np.float32)
    uniforms = np.array([0.1, 0.3, 0.6, 0.9])
    chosen = sample(np.stack([logits] * 4), [SamplingParameters(1e30)] * 4, uniforms)
    assert chosen.tolist() == [0, 1, 2, 3]


def test_a_rows_choice_does_not_depend_on_the_other_rows() -> None:
    generator = np.random.default_rng(1)
    logits = generator.standard_normal((12, 3000)).astype(np.float32)
    choices = [SamplingParameters(0.1 * row, top_k=10 * row, top_p=0.9) for row in range(12)]
    uniforms = generator.random(12)
    together = sample(logits, choices, uniforms)
    for row in range(12):
        assert together[row] == draw(logits[row], choices[row], uniforms[row])


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_and_infinite_logits_are_an_error_that_names_the_rows(
    value: float, temperature: float
) -> None:
    logits = np.zeros((4, 100), np.float32)
    logits[1, 99] = logits[3, 0] = value
    with pytest.raises(LogitsError) as caught:
        sample(logits, [SamplingParameters(temperature)] * 4, np.zeros(4))
    assert caught.value.rows == (1, 3)


def test_a_row_that_forbids_every_token_is_an_error() -> None:
    with pytest.raises(LogitsError):
        sample(np.full((1, 5), -math.inf, np.float32), [SamplingParameters()], np.zeros(1))
