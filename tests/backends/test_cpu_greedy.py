"""The likeliest token of each row, noted chunk by chunk, is what numpy finds in the whole row."""

import itertools

import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray

from kvikk.backends.base import SamplingParameters
from kvikk.backends.cpu.greedy import (
    UNUSABLE,
    choose_greedily,
    forget_candidates,
    note_candidates,
)
from tests.backends.driver import Driver, Remembering
from tests.backends.random_decoders import Shape, random_decoder


@njit
def _run(logits, candidates, chunks, choices):
    """Threads take chunks in turns; see ``greedy``."""
    num_threads, num_rows = candidates.shape
    for thread in range(num_threads):
        forget_candidates(candidates[thread].ctypes.data, num_rows)
    for index in range(len(chunks)):
        noted, (first, end) = candidates[index % num_threads].ctypes.data, chunks[index]
        row_bytes = logits.shape[1] * 4
        note_candidates(noted, logits.ctypes.data, row_bytes, 0, num_rows, first, end)
    each = num_rows * 8
    choose_greedily(candidates.ctypes.data, each, num_threads, num_rows, choices.ctypes.data)


def _choices(logits: NDArray[np.float32], chunks: list[tuple[int, int]]) -> NDArray[np.int32]:
    choices = np.zeros(len(logits), np.int32)
    candidates = np.zeros((3, len(logits)), np.int64)
    _run(logits, candidates, np.array(chunks), choices)
    return choices


def test_the_largest_logit_is_found_and_of_equal_ones_the_first() -> None:
    generator = np.random.default_rng(0)
    # Few different numbers, so that the largest is there many times; zeros of both signs.
    logits = np.rint(generator.normal(size=(50, 203))).astype(np.float32)
    logits[:25] = np.minimum(logits[:25], 0)
    logits[7, 3:] = -np.inf
    cuts = [0, 16, 17, 80, 160, 203]
    chunks = list(itertools.pairwise(cuts))
    for order in (chunks, chunks[::-1], [*chunks, chunks[1]]):
        assert _choices(logits, order).tolist() == np.argmax(logits, axis=1).tolist()


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf])
def test_a_row_without_a_finite_largest_logit_is_told(value: float) -> None:
    logits = np.zeros((3, 40), np.float32)
    logits[1, 20] = value
    logits[2] = -np.inf
    assert _choices(logits, [(0, 16), (16, 40)]).tolist() == [0, UNUSABLE, UNUSABLE]


@pytest.mark.parametrize("num_tokens", [1, 5, 40])
def test_what_a_step_found_is_what_its_logits_say(num_tokens: int) -> None:
    backend = Remembering(2)
    driver = Driver(backend, random_decoder(Shape()), 128, kv_dtype="bf16")
    driver.all_logits(range(num_tokens))
    logits = backend.latest
    expected = np.argmax(logits, axis=1).tolist()
    assert backend.likeliest(logits) == expected
    assert backend.likeliest(logits.copy()) is None
    greedy = [SamplingParameters()] * num_tokens
    assert backend.sample(logits, greedy, np.zeros(num_tokens)).tolist() == expected
