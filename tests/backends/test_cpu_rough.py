"""Greedy choices from a rough head are those of the whole one, and their bounds hold."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from kvikk.backends.cpu.rough import FEWEST_ROWS, SPAN_TILES
from kvikk.files.quantization import dequantize
from kvikk.models.decoder import Decoder
from tests.backends.driver import Driver, Piece, Remembering
from tests.backends.random_decoders import Shape, random_decoder

SPAN = 16 * SPAN_TILES
HEADS = ["Q8_0", "Q6_K", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "IQ4_NL"]


def decoder_with(head: str, vocabulary_size: int = 1003) -> Decoder:
    dtypes = (*["Q8_0"] * 7, head)
    return random_decoder(
        Shape(
            hidden_size=256,
            feed_forward_size=256,
            vocabulary_size=vocabulary_size,
            dtypes=dtypes,
        )
    )


def with_head_rows(decoder: Decoder, change: Callable[[NDArray[np.uint8]], None]) -> Decoder:
    """The decoder with its head's rows, as bytes ``[rows, bytes]``, changed in place."""
    tensor = decoder.head.tensor
    data = tensor.data.reshape(tensor.shape[0], -1).copy()
    change(data)
    head = replace(decoder.head, tensor=replace(tensor, data=data.reshape(-1)))
    return replace(decoder, head=head)


def both_ways(decoder: Decoder, num_rows: int) -> tuple[list[int], list[int]]:
    """What a step chooses for the last rows of a prompt: roughly, and by all logits."""
    backend = Remembering(2)
    driver = Driver(backend, decoder, 512, kv_dtype="bf16")
    tokens = np.random.default_rng(5).integers(0, decoder.vocabulary_size, 70).tolist()
    (exact,) = driver.run([Piece(driver.new_sequence(), tokens, num_rows)])
    driver.run([Piece(driver.new_sequence(), tokens, num_rows)], choices_only=True)
    chosen = backend.likeliest(backend.latest)
    assert chosen is not None
    assert chosen == np.argmax(backend.latest, axis=1).tolist()
    assert not np.isnan(backend.latest).any()
    was_rough = backend._tables.model[0]["is_rough"]
    assert was_rough == (num_rows >= FEWEST_ROWS)
    return chosen, np.argmax(exact, axis=1).tolist()


@pytest.mark.parametrize("num_rows", [1, 4, 5, 16, 33, 64])
@pytest.mark.parametrize("head", HEADS)
def test_rough_choices_are_those_of_all_logits(head: str, num_rows: int) -> None:
    chosen, expected = both_ways(decoder_with(head), num_rows)
    assert chosen == expected


def test_of_equal_logits_in_many_spans_the_first_token_is_chosen() -> None:
    def repeat(rows: NDArray[np.uint8]) -> None:
        rows[:] = rows[np.arange(len(rows)) % 37]

    chosen, expected = both_ways(with_head_rows(decoder_with("Q8_0"), repeat), 20)
    assert chosen == expected
    assert max(chosen) < 37


def test_where_all_logits_are_alike_the_choice_is_still_exact() -> None:
    """Rows that differ in one integer of 256: every span may hold the choice."""

    def flatten(rows: NDArray[np.uint8]) -> None:
        changed = rows[np.arange(len(rows)), 40].copy()
        rows[:] = rows[0]
        rows[np.arange(len(rows)), 40] = changed

    chosen, expected = both_ways(with_head_rows(decoder_with("Q8_0"), flatten), 20)
    assert chosen == expected


@pytest.mark.parametrize("vocabulary_size", [7, SPAN, SPAN + 1, 5 * SPAN - 3])
def test_a_vocabulary_may_end_within_a_span(vocabulary_size: int) -> None:
    chosen, expected = both_ways(decoder_with("Q6_K", vocabulary_size), 16)
    assert chosen == expected


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_head_with_a_damaged_scale_is_multiplied_whole(value: float) -> None:
    def spoil(rows: NDArray[np.uint8]) -> None:
        rows[700, 0:2] = np.array([value], np.float16).view(np.uint8)

    backend = Remembering(2)
    driver = Driver(backend, with_head_rows(decoder_with("Q8_0"), spoil), 512, kv_dtype="bf16")
    (exact,) = driver.run([Piece(driver.new_sequence(), list(range(40)), 20)])
    driver.run([Piece(driver.new_sequence(), list(range(40)), 20)], choices_only=True)
    np.testing.assert_array_equal(backend.latest, exact)


def test_a_row_that_is_no_number_has_no_choice() -> None:
    decoder = decoder_with("Q8_0")
    endless = replace(decoder.final_norm, weight=np.full_like(decoder.final_norm.weight, np.inf))
    backend = Remembering(2)
    driver = Driver(backend, replace(decoder, final_norm=endless), 512, kv_dtype="bf16")
    driver.run([Piece(driver.new_sequence(), list(range(40)), 20)], choices_only=True)
    assert backend._tables.model[0]["is_rough"] == 1
    assert backend.likeliest(backend.latest) is None


@pytest.mark.parametrize("head", HEADS)
def test_bounds_hold_for_every_logit(head: str) -> None:
    decoder = decoder_with(head)
    backend = Remembering(1)
    driver = Driver(backend, decoder, 512, kv_dtype="bf16")
    tokens = list(range(60))
    (exact,) = driver.run([Piece(driver.new_sequence(), tokens, 60)])
    driver.run([Piece(driver.new_sequence(), tokens, 60)], choices_only=True)
    rough = backend.latest.astype(float)
    weights = backend._weights
    spans = -(-decoder.vocabulary_size // SPAN)
    bounds = weights.region.bytes_at(weights._bounds_at, 16 * (spans + 1)).view(float)
    norms = np.linalg.norm(dequantize(decoder.head.tensor).astype(float), axis=1)
    own = [norms[SPAN * span : SPAN * (span + 1)].max() for span in range(spans)]
    # Scales of K types are products that are rounded to float16.
    np.testing.assert_allclose(bounds[: 2 * spans : 2], own, rtol=2**-10)
    assert bounds[2 * spans] == bounds[: 2 * spans : 2].max()
    # What the first parts left over of each row, read by the description in ``panels``.
    room, groups = backend._workspace, decoder.hidden_size // 32
    shape = (len(tokens), groups, 2, 32)
    places = room._offsets["apart_integers"], room._offsets["apart_scales"]
    integers = room.region.bytes_at(places[0], np.prod(shape)).view(np.int8).reshape(shape)
    scales = room.region.bytes_at(places[1], np.prod(shape) // 2).view(np.float32)
    left = scales.reshape(-1, groups, 2, 4)[:, :, 1, :1].astype(float) * integers[:, :, 1]
    most = np.linalg.norm(left.reshape(len(tokens), -1), axis=1)[:, None] * norms
    moved = np.abs(exact - rough)
    assert np.all(moved <= most * (1 + 2**-10) + 1e-4 * np.abs(exact).max())
    assert (moved / most).max() > 0.05  # or this would not be what they are made of
