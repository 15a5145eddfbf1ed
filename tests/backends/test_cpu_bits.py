"""The same prompt gives the same bits: alone or in company, in any chunks, cold or after a hit."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from kvikk.backends.cpu.backend import CpuBackend
from kvikk.files.sources import resolve
from kvikk.models.decoder import Decoder
from kvikk.models.load import load_decoder
from tests.backends.driver import DrivenSequence, Driver, Piece
from tests.backends.random_decoders import Shape, random_decoder

NUM_NEW_TOKENS = 3
Logits = NDArray[np.float32]


def continued(driver: Driver, sequence: DrivenSequence, first: Logits) -> Logits:
    """A prompt's logits and those of a few greedy tokens after it; the sequence ends."""
    rows = [first]
    for _ in range(NUM_NEW_TOKENS):
        (logits,) = driver.run([Piece(sequence, [int(rows[-1].argmax())])])
        rows.append(logits[-1])
    driver.release(sequence)
    return np.stack(rows)


def alone(driver: Driver, tokens: list[int], chunk: int) -> Logits:
    sequence = driver.new_sequence()
    return continued(driver, sequence, driver.prefill(sequence, tokens, chunk))


def among_others(driver: Driver, tokens: list[int], chunk: int) -> Logits:
    """The prompt in chunks, and in each of its steps 31 other sequences, some of several tokens."""
    rng = np.random.default_rng(1)
    highest = min(driver.decoder.vocabulary_size, 3000)
    others = [driver.new_sequence() for _ in range(31)]
    sequence = driver.new_sequence()

    def step(own: list[int]) -> Logits:
        pieces = [
            Piece(other, rng.integers(0, highest, rng.choice([1, 1, 1, 4])).tolist())
            for other in others
        ]
        pieces.insert(13, Piece(sequence, own))
        return driver.run(pieces)[13][-1]

    for start in range(0, len(tokens), chunk):
        logits = step(tokens[start : start + chunk])
    rows = [logits]
    for _ in range(NUM_NEW_TOKENS):
        rows.append(step([int(rows[-1].argmax())]))
    for one in [*others, sequence]:
        driver.release(one)
    return np.stack(rows)


def after_a_hit(driver: Driver, tokens: list[int], hit_tokens: int) -> Logits:
    """The prompt's first blocks were computed by another sequence that is still there."""
    earlier = driver.new_sequence()
    driver.prefill(earlier, [*tokens[:hit_tokens], 5, 6, 7], 64)
    sequence = driver.new_sequence()
    sequence.tokens = list(tokens[:hit_tokens])
    for table, computed in zip(sequence.block_tables, earlier.block_tables, strict=True):
        table += computed[: hit_tokens // driver.block_size]
    shared = [list(table) for table in sequence.block_tables]
    rows = continued(driver, sequence, driver.prefill(sequence, tokens[hit_tokens:], 64))
    for group, blocks in enumerate(shared):  # given back twice, by both sequences: once is enough
        for block in blocks:
            if block in driver.free[group]:
                driver.free[group].remove(block)
    driver.release(earlier)
    return rows


def spoil_free_blocks(driver: Driver) -> None:
    """Fill every free block with NaN, as if something else had been there."""
    for group, free in enumerate(driver.free):
        num_bytes = len(driver.backend.read(group, [0]))
        driver.backend.write(group, free, b"\xff" * num_bytes * len(free))


def after_a_preemption(driver: Driver, tokens: list[int]) -> Logits:
    """Half of the prompt and a few tokens were computed, thrown away, and all is computed again."""
    sequence = driver.new_sequence()
    driver.prefill(sequence, tokens[: len(tokens) // 2], 64)
    driver.release(sequence)
    spoil_free_blocks(driver)
    return alone(driver, tokens, 128)


def check_all(decoder: Decoder, tokens: list[int], kv_dtype: str = "bf16") -> None:
    """Every way to the same logits, in one assertion each."""

    def driver(threads: int, block_size: int) -> Driver:
        return Driver(CpuBackend(threads), decoder, 4096, block_size, kv_dtype)

    first = driver(2, 32)
    expected = alone(first, tokens, 512)
    hit_tokens = len(tokens) // 2 // 32 * 32
    ways = {
        "chunks of 7": lambda: alone(first, tokens, 7),
        "chunks of 64": lambda: alone(first, tokens, 64),
        "among 31 others": lambda: among_others(first, tokens, 201),
        "after a hit": lambda: after_a_hit(first, tokens, hit_tokens),
        "after a preemption": lambda: after_a_preemption(first, tokens),
        "one thread": lambda: alone(driver(1, 32), tokens, 512),
        "blocks of 16": lambda: alone(driver(2, 16), tokens, 64),
    }
    for way, compute in ways.items():
        np.testing.assert_array_equal(compute(), expected, err_msg=way)


@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
def test_real_models_give_the_same_bits(name: str) -> None:
    tokens = [2, *np.random.default_rng(2).integers(300, 3000, 599).tolist()]
    check_all(load_decoder(resolve(name)), tokens)


MIXED = ("Q5_0", "Q5_0", "Q8_0", "Q4_K", "Q5_0", "Q5_0", "Q6_K", "Q8_0")
WIDE = Shape(hidden_size=256, feed_forward_size=256, windows=(48, None, 300), dtypes=MIXED)


@pytest.mark.parametrize(
    ("shape", "kv_dtype"),
    [
        (WIDE, "f32"),
        (WIDE, "bf16"),
        (WIDE, "int8"),
        (WIDE, "fp8"),
        (WIDE, "int4"),
        (replace(WIDE, layer_norms=True, biased=True, gated=False, activation="gelu"), "bf16"),
        (replace(WIDE, rich=True, biased=True, score_cap=0.5, logit_cap=1.5), "f32"),
        (replace(WIDE, norms_behind_only=True, rotated=(None, 16, 32), stretch=1.3), "bf16"),
    ],
    ids=[
        "f32",
        "bf16",
        "int8",
        "fp8",
        "int4",
        "layer norms, no gate",
        "biases and caps",
        "norms behind, part turned",
    ],
)
def test_random_models_give_the_same_bits(shape: Shape, kv_dtype: str) -> None:
    tokens = np.random.default_rng(3).integers(0, 101, 600).tolist()
    check_all(random_decoder(shape), tokens, kv_dtype)
