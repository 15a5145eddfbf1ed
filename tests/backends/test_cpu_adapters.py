"""Adapters on the CPU backend: the reference's logits, and the same bits in any company."""

from dataclasses import replace

import numpy as np
import pytest

from kvikk.backends.base import Batch
from kvikk.backends.cpu.backend import CpuBackend
from kvikk.backends.reference.backend import ReferenceBackend
from tests.backends.adapters import random_adapter
from tests.backends.driver import Driver, Piece
from tests.backends.random_decoders import Shape, in_float32, random_decoder

TOKENS = np.random.default_rng(5).integers(0, 37, 60).tolist()
ATTENTION = ("query", "key", "value", "output")

# What decides how an adapter's results meet the base's: who applies the activation, biases, tiles
# of one format or of several, sizes that fill no tile.
SHAPES = {
    "gate and up in one": Shape(),
    "gelu, norms, windows": Shape(windows=(48, None), rich=True, activation="gelu_tanh"),
    "odd sizes": Shape(hidden_size=80, feed_forward_size=72, vocabulary_size=37, tied=False),
    "biases": Shape(biased=True),
    "no gate": Shape(layer_norms=True, biased=True, gated=False, activation="gelu_tanh"),
    "exact gelu": Shape(activation="gelu"),
    "experts": Shape(num_experts=4),
    "4 bits": Shape(dtypes=("Q4_0",) * 8, feed_forward_size=64),
    "many formats": Shape(
        hidden_size=64,
        feed_forward_size=64,
        dtypes=("Q4_1", "Q8_0", "F16", "Q5_0", "Q4_0", "BF16", "Q8_0", "Q8_0"),
    ),
}


def all_logits(driver: Driver, adapter: int) -> np.ndarray:
    """The logits of all tokens: some together, then one at a time."""
    sequence = driver.new_sequence(adapter)
    rows = [*driver.run([Piece(sequence, TOKENS[:37], num_logits=37)])]
    rows += [driver.run([Piece(sequence, [token])])[0] for token in TOKENS[37:]]
    return np.concatenate(rows)


@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_the_references(name: str) -> None:
    decoder = random_decoder(SHAPES[name])
    is_float = set(SHAPES[name].dtypes) == {"F32"}
    adapter = random_adapter(decoder, 1, rank=5)
    expected = Driver(ReferenceBackend(), in_float32(decoder), 512)
    driver = Driver(CpuBackend(2), decoder, 512)
    for one in (expected, driver):
        one.backend.load_adapter(2, adapter)
    truth, ours = all_logits(expected, 2), all_logits(driver, 2)
    assert np.abs(ours - truth).max() < (1e-4 if is_float else 0.06) * truth.std()
    assert np.abs(truth - all_logits(expected, 0)).max() > 0.3 * truth.std()
    np.testing.assert_array_equal(
        all_logits(driver, 0), all_logits(Driver(CpuBackend(2), decoder, 512), 0)
    )


@pytest.mark.parametrize("name", ["gate and up in one", "4 bits", "many formats", "experts"])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_two_adapters_and_the_base_in_one_batch_have_the_bits_they_have_alone(
    name: str, num_threads: int
) -> None:
    decoder = random_decoder(SHAPES[name])
    driver = Driver(CpuBackend(num_threads), decoder, 4096)
    driver.backend.load_adapter(1, random_adapter(decoder, 1, rank=5))
    driver.backend.load_adapter(3, random_adapter(decoder, 2, rank=37, roles=("value", "up")))
    alone = {number: all_logits(driver, number) for number in (0, 1, 3)}
    # Prompts and single tokens, so that panels and shares of threads fall differently.
    numbers = [0, 1, 3, 3, 0, 1, 0, 0, 1, 3, 1, 0]
    sequences = [driver.new_sequence(number) for number in numbers]
    for start in range(0, 60, 12):
        pieces = []
        for index, sequence in enumerate(sequences):
            done = len(sequence.tokens)
            count = min((1, 7, 30)[(index + start) % 3], 60 - done)
            if count:
                pieces.append(Piece(sequence, TOKENS[done : done + count], num_logits=count))
        for piece, logits in zip(pieces, driver.run(pieces), strict=True):
            stop = len(piece.sequence.tokens)
            expected = alone[piece.sequence.adapter][stop - len(piece.tokens) : stop]
            np.testing.assert_array_equal(logits, expected)


def test_an_adapter_that_was_unloaded_is_gone_and_its_number_free() -> None:
    decoder = random_decoder(Shape())
    driver = Driver(CpuBackend(1), decoder, 512)
    driver.backend.load_adapter(1, random_adapter(decoder, 1))
    first = all_logits(driver, 1)
    driver.backend.unload_adapter(1)
    with pytest.raises(ValueError, match="adapters"):
        all_logits(driver, 1)
    driver.backend.load_adapter(1, random_adapter(decoder, 2))
    assert np.abs(all_logits(driver, 1) - first).max() > 0.1
    driver.backend.unload_adapter(1)
    driver.backend.load_adapter(1, random_adapter(decoder, 1))
    np.testing.assert_array_equal(all_logits(driver, 1), first)


@pytest.mark.parametrize("shape", [Shape(), Shape(dtypes=("Q4_0",) * 8, feed_forward_size=64)])
def test_hidden_states_are_what_the_head_turns_into_logits(shape: Shape) -> None:
    decoder = random_decoder(shape)
    reference = Driver(ReferenceBackend(), in_float32(decoder), 512)
    driver = Driver(CpuBackend(2), decoder, 512)
    states = []
    for one in (reference, driver):
        batch = a_batch(one)
        plain = one.backend.forward(batch).copy()
        with_hidden = replace(batch, hidden_rows=np.array([0, 4, 8, 9], np.int32))
        logits = one.backend.forward(with_hidden).copy()
        np.testing.assert_array_equal(logits, plain)
        hidden = one.backend.hidden_states().copy()
        assert hidden.shape == (4, decoder.hidden_size)
        np.testing.assert_allclose(
            hidden[[1, 3]] @ decoder.head.float32().T,
            logits[[0, 2]],
            rtol=0,
            atol=1e-4 if set(shape.dtypes) == {"F32"} else 0.02 * logits.std(),
        )
        nothing = replace(with_hidden, logits_rows=np.zeros(0, np.int32))
        assert len(one.backend.forward(nothing)) == 0
        np.testing.assert_array_equal(one.backend.hidden_states(), hidden)
        states.append(hidden)
    ours, truth = states[1], states[0]
    cosine = (ours * truth).sum(-1) / np.linalg.norm(ours, axis=-1) / np.linalg.norm(truth, axis=-1)
    assert cosine.min() > 0.999


def a_batch(driver: Driver) -> Batch:
    """Ten tokens of two sequences; logits of rows 4, 7 and 9."""
    tokens = np.array(TOKENS[:10], np.int32)
    rows = np.array([0] * 5 + [1] * 5, np.int32)
    positions = np.array([*range(5)] * 2, np.int32)
    tables = tuple(np.array([[0], [1]], np.int32) for _ in driver.plan.groups)
    return Batch(tokens, positions, rows, tables, np.array([4, 7, 9], np.int32))


def test_the_hidden_state_of_a_token_alone_is_the_same() -> None:
    driver = Driver(CpuBackend(2), random_decoder(Shape()), 512)
    batch = replace(a_batch(driver), hidden_rows=np.array([9], np.int32))
    driver.backend.forward(batch)
    together = driver.backend.hidden_states().copy()
    last = Batch(
        batch.token_ids[9:],
        batch.positions[9:],
        np.zeros(1, np.int32),
        tuple(table[1:] for table in batch.block_tables),
        np.zeros(0, np.int32),
        hidden_rows=np.zeros(1, np.int32),
    )
    driver.backend.forward(last)
    np.testing.assert_array_equal(driver.backend.hidden_states(), together)
