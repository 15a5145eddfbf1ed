import random
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from kvikk.cache.tiers.stored_block import HEADER_BYTES, UnfitError
from tests.cache.tiers.blocks import BLOCK_BYTES, block_format, chain, content

KEY, OTHER_KEY = chain(2)


def bfloat16s(seed: int) -> bytes:
    """What keys and values look like: a narrow range of exponents."""
    values = np.random.default_rng(seed).normal(size=BLOCK_BYTES // 2).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


@given(seed=st.integers(0, 2**32 - 1), element_bytes=st.sampled_from([1, 2, 4]))
def test_a_stored_block_comes_back_bit_by_bit(seed: int, element_bytes: int) -> None:
    block = random.Random(seed).randbytes(BLOCK_BYTES)
    stored = block_format().pack(KEY, block, element_bytes)
    assert block_format().unpack(KEY, stored) == block


def test_bfloat16_blocks_shrink_by_a_fifth_or_more_and_lose_nothing() -> None:
    block = bfloat16s(1)
    stored = block_format().pack(KEY, block, element_bytes=2)
    assert len(stored) < 0.8 * len(block)
    assert block_format().unpack(KEY, stored) == block


@settings(max_examples=300)
@given(data=st.data(), element_bytes=st.sampled_from([1, 2]))
def test_whatever_byte_is_damaged_the_block_is_refused(
    data: st.DataObject, element_bytes: int
) -> None:
    stored = bytearray(block_format().pack(KEY, bfloat16s(2), element_bytes))
    place = data.draw(st.one_of(st.integers(0, HEADER_BYTES), st.integers(0, len(stored) - 1)))
    stored[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(UnfitError):
        block_format().unpack(KEY, bytes(stored))


@given(length=st.integers(0, BLOCK_BYTES + HEADER_BYTES - 1))
def test_a_block_cut_off_anywhere_is_refused(length: int) -> None:
    stored = block_format().pack(KEY, content(KEY))
    with pytest.raises(UnfitError):
        block_format().unpack(KEY, stored[:length])


@pytest.mark.parametrize(
    ("stored_by", "asked_for", "reason"),
    [
        (block_format(model=b"another"), KEY, "another model"),
        (replace(block_format(), block_bytes=(8, 8)), KEY, "has 8 bytes, not 4096"),
        (block_format(), OTHER_KEY, "another block"),
    ],
)
def test_a_whole_block_of_another_kind_is_refused_for_what_it_is(
    stored_by, asked_for, reason
) -> None:
    stored = stored_by.pack(KEY, content(KEY)[: stored_by.block_bytes[0]])
    with pytest.raises(UnfitError, match=reason):
        block_format().unpack(asked_for, stored)


@pytest.mark.parametrize("encoding", [0, 1, 2, 7])
@pytest.mark.parametrize("payload", [b"", b"\0", b"\2" * 50, b"\1" + b"\xff" * 40])
def test_a_payload_that_is_none_is_refused_though_its_checksum_fits(
    encoding: int, payload: bytes
) -> None:
    stored = block_format()._with_header(KEY, BLOCK_BYTES, encoding, payload)
    with pytest.raises(UnfitError, match="encoding"):
        block_format().unpack(KEY, stored)
