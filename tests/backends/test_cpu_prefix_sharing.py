"""Sequences with the same blocks read them once a step, and get the bits they get alone."""

from ctypes import c_int64

import numpy as np
import pytest
from numpy.typing import NDArray

from kvikk.backends.cpu.attention import PIECE_SLOTS
from kvikk.backends.cpu.backend import CpuBackend
from kvikk.backends.cpu.records import ITEM_FIELDS, ITEM_PIECE, ITEM_PIECE_END
from tests.backends.driver import DrivenSequence, Driver, Piece
from tests.backends.random_decoders import Shape, random_decoder

PREFIX_TOKENS = 640  # two whole pieces and half of one
RNG = np.random.default_rng(5)
PREFIX = RNG.integers(0, 101, PREFIX_TOKENS).tolist()


def driver_of(windows: tuple[int | None, ...], block_size: int = 32) -> Driver:
    shape = Shape(hidden_size=64, num_heads=6, num_kv_heads=2, windows=windows)
    return Driver(CpuBackend(2), random_decoder(shape), 1 << 14, block_size, "bf16")


def parent_of(driver: Driver) -> DrivenSequence:
    parent = driver.new_sequence()
    for start in range(0, PREFIX_TOKENS, 320):
        driver.run([Piece(parent, PREFIX[start : start + 320])])
    return parent


def child_of(driver: Driver, parent: DrivenSequence, own_tokens: int) -> DrivenSequence:
    """A sequence on the parent's full blocks, with some tokens of its own behind the prefix."""
    child = driver.new_sequence()
    full_blocks = PREFIX_TOKENS // driver.block_size
    hit_tokens = full_blocks * driver.block_size
    child.tokens = PREFIX[:hit_tokens]
    for table, shared in zip(child.block_tables, parent.block_tables, strict=True):
        table += shared[:full_blocks]
    own = np.random.default_rng(own_tokens).integers(0, 101, own_tokens).tolist()
    driver.run([Piece(child, [*PREFIX[hit_tokens:], *own])])
    return child


def next_logits(driver: Driver, sequences: list[DrivenSequence]) -> list[NDArray[np.float32]]:
    """A step of one token each, which is then forgotten, so that it may be run again."""
    logits = driver.run([Piece(sequence, [7]) for sequence in sequences])
    for sequence in sequences:
        sequence.tokens.pop()
    return logits


def pieces_read(driver: Driver, group: int) -> int:
    """Pieces that the last step's attention work read, all items of a group together."""
    tables = driver.backend._tables  # type: ignore[attr-defined]
    record = tables.groups[group]
    count = int(record["num_items"]) * ITEM_FIELDS
    numbers = np.ctypeslib.as_array((c_int64 * count).from_address(int(record["items"])))
    items = numbers.reshape(-1, ITEM_FIELDS)
    return int((items[:, ITEM_PIECE_END] - items[:, ITEM_PIECE]).sum())


@pytest.mark.parametrize("num_children", [2, 7, 19])
@pytest.mark.parametrize(
    ("windows", "block_size"), [((None, None), 32), ((48, None, 300), 16), ((None, 600), 48)]
)
def test_children_of_one_prompt_get_the_bits_they_get_alone(
    windows: tuple[int | None, ...], block_size: int, num_children: int
) -> None:
    driver = driver_of(windows, block_size)
    parent = parent_of(driver)
    # Some stand in the same piece as others, some one or two pieces further.
    children = [child_of(driver, parent, 3 + 25 * i) for i in range(num_children)]
    stranger = driver.new_sequence()
    driver.run([Piece(stranger, PREFIX[:512])])
    group = [*children[: num_children // 2], stranger, *children[num_children // 2 :], parent]
    together = next_logits(driver, group)
    for sequence, logits in zip(group, together, strict=True):
        np.testing.assert_array_equal(logits, next_logits(driver, [sequence])[0])


def test_children_that_have_given_back_what_no_window_reaches_get_the_same_bits() -> None:
    driver = driver_of((300, None))
    parent = parent_of(driver)
    children = [child_of(driver, parent, 1 + 20 * i) for i in range(6)]
    kept = next_logits(driver, children)
    for child in children[::2]:
        first_visible = len(child.tokens) + 1 - 300
        for block in range(first_visible // 32):
            child.block_tables[0][block] = -1
    np.testing.assert_array_equal(next_logits(driver, children), kept)


@pytest.mark.parametrize("num_children", [4, 12])
def test_a_shared_prefix_is_read_once_a_step(num_children: int) -> None:
    driver = driver_of((None,))
    parent = parent_of(driver)
    children = [child_of(driver, parent, 5) for _ in range(num_children)]
    next_logits(driver, children)
    shared, own = PREFIX_TOKENS // PIECE_SLOTS, 1
    items = 1 if num_children == 4 else 2  # a large family is cut for two threads
    assert pieces_read(driver, 0) == shared * items + own * num_children
    strangers = [driver.new_sequence() for _ in range(num_children)]
    for stranger in strangers:
        driver.run([Piece(stranger, PREFIX[:320])])
        driver.run([Piece(stranger, PREFIX[320:])])
    next_logits(driver, strangers)
    assert pieces_read(driver, 0) == (shared + own) * num_children
