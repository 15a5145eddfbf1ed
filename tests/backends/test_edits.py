"""Edits of logits, min-p and log-probabilities against transformers' and torch's own."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from kvikk.backends.base import LogitsEdit, SamplingParameters
from kvikk.backends.logprobs import logprobs
from kvikk.backends.sampling import apply_edit, sample

VOCABULARY = 120


def random_logits(seed: int, rows: int = 1) -> NDArray[np.float32]:
    generator = np.random.default_rng(seed)
    return (generator.standard_normal((rows, VOCABULARY)) * 3).astype(np.float32)


def edit_of(
    bias: dict[int, float], seen: set[int], repetition: float, discounts: dict[int, float]
) -> LogitsEdit:
    ids = sorted({*bias, *seen, *discounts})
    return LogitsEdit(
        np.array(ids, np.int64),
        np.array([bias.get(i, 0) for i in ids], np.float32),
        np.array([repetition if i in seen else 1 for i in ids], np.float32),
        np.array([discounts.get(i, 0) for i in ids], np.float32),
    )


@pytest.mark.parametrize("repetition", [0.7, 1.0, 1.3])
def test_bias_and_repetition_are_those_of_transformers(repetition: float) -> None:
    logits = random_logits(1)
    bias, seen = {3: 2.5, 77: -100.0, 101: 0.5}, {3, 9, 77, 110}
    theirs = LogitsProcessorList(
        [
            SequenceBiasLogitsProcessor([[[token], value] for token, value in bias.items()]),
            RepetitionPenaltyLogitsProcessor(repetition),
        ]
    )(torch.tensor([sorted(seen)]), torch.tensor(logits.copy()))
    apply_edit(logits[0], edit_of(bias, seen, repetition, {}))
    np.testing.assert_allclose(logits, theirs.numpy(), rtol=1e-6)


def test_discounts_come_last_and_minus_infinity_forbids() -> None:
    row = np.array([4.0, -4.0, 1.0, 9.0], np.float32)
    apply_edit(row, edit_of({3: -np.inf}, {0, 1, 3}, 2.0, {0: 0.5, 1: 0.5}))
    assert row.tolist() == [1.5, -8.5, 1.0, -np.inf]


@pytest.mark.parametrize(("size", "words"), [(40, 2), (64, 2), (70, 2), (33, 3)])
def test_only_allowed_tokens_are_left(size: int, words: int) -> None:
    allowed = {0, 5, 31, 32, 39}
    bits = np.zeros(words, np.uint32)
    for token in allowed:
        bits[token // 32] |= np.uint32(1 << token % 32)
    row = np.arange(size, dtype=np.float32)
    nothing = np.zeros(0, np.float32)
    apply_edit(row, LogitsEdit(np.zeros(0, np.int64), nothing, nothing, nothing, bits))
    assert set(np.flatnonzero(np.isfinite(row)).tolist()) == {t for t in allowed if t < size}


def test_100_000_draws_follow_transformers_distribution() -> None:
    choice = SamplingParameters(1.2, top_k=80, top_p=0.9, min_p=0.01)
    logits, seen = random_logits(7), {1, 2, 3, int(random_logits(7).argmax())}
    edit = edit_of({5: 3.0}, seen, 1.2, {})
    theirs = LogitsProcessorList(
        [
            SequenceBiasLogitsProcessor([[[5], 3.0]]),
            RepetitionPenaltyLogitsProcessor(1.2),
            TemperatureLogitsWarper(choice.temperature),
            TopKLogitsWarper(choice.top_k),
            TopPLogitsWarper(choice.top_p),
            MinPLogitsWarper(choice.min_p),
        ]
    )(torch.tensor([sorted(seen)]), torch.tensor(logits.copy()))
    expected = torch.softmax(theirs[0].double(), -1).numpy()
    count, batch = 100_000, 2_000
    uniforms = np.random.default_rng(3).random(count)
    seen_counts = np.zeros(VOCABULARY, np.int64)
    rows = np.broadcast_to(logits[0], (batch, VOCABULARY))
    for start in range(0, count, batch):
        chosen = sample(rows, [choice] * batch, uniforms[start : start + batch], [edit] * batch)
        seen_counts += np.bincount(chosen, minlength=VOCABULARY)
    assert not seen_counts[expected == 0].any(), "a token that the definition leaves out"
    kept = expected * count > 5
    statistic = ((seen_counts - expected * count)[kept] ** 2 / (expected * count)[kept]).sum()
    freedom = int(kept.sum()) - 1
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5 + 1  # five standard deviations


def test_an_edit_changes_its_own_row_and_not_the_callers_logits() -> None:
    logits = random_logits(5, rows=3)
    before = logits.copy()
    best = logits.argmax(1)
    edits = [None, edit_of({int(best[1]): -np.inf}, set(), 1, {}), None]
    chosen = sample(logits, [SamplingParameters()] * 3, np.zeros(3), edits)
    assert (logits == before).all()
    assert (chosen[[0, 2]] == best[[0, 2]]).all()
    assert chosen[1] == np.argsort(-before[1])[1]


def test_logprobs_are_torchs_log_softmax() -> None:
    logits = random_logits(11, rows=4)
    logits[2, 80:] = -np.inf
    tokens = np.array([0, 119, 7, int(logits[3].argmax())], np.int64)
    found = logprobs(logits, tokens, 5)
    theirs = torch.log_softmax(torch.tensor(logits).double(), -1).numpy()
    np.testing.assert_allclose(found.chosen, theirs[range(4), tokens], rtol=1e-5)
    for row in range(4):
        order = np.argsort(-theirs[row], kind="stable")
        assert found.top_ids[row].tolist() == order[:5].tolist()
        np.testing.assert_allclose(found.top[row], theirs[row][order[:5]], rtol=1e-5)
        assert found.ranks[row] == 1 + order.tolist().index(tokens[row])
