"""Keys: equal exactly where keys and values are equal, everywhere and for ever."""

import struct
from hashlib import sha256
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given

from kvikk.cache.keys import KEY_BYTES, KeyChain, block_key, root_key

FIELDS = st.fixed_dictionaries(
    {
        "model": st.binary(max_size=4),
        "block_size": st.integers(1, 64),
        "kv_dtype": st.sampled_from(["f32", "bf16", ""]),
        "numerics": st.text("ab1", max_size=3),
        "adapter": st.binary(max_size=4),
        "salt": st.binary(max_size=4),
    }
)
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=20)


def test_a_key_is_the_same_on_every_machine_and_in_every_release() -> None:
    root = root_key(model=b"model", block_size=2, kv_dtype="bf16", numerics="cpu-1", salt=b"s")
    assert root.hex() == "01492aed63b17e9e888b05d0ad4a109a9a599438dcdbc594face12142ae7f869"
    assert (
        KeyChain(root, 2, [1, 2, 3, 4]).keys[1].hex()
        == "d9f648a84442d7e08d93d394e6e11771cec738d96f25dc408b0d0f74bfcce717"
    )


@given(TOKENS, st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES))
def test_a_block_key_is_sha256_of_the_parent_and_little_endian_tokens(
    tokens: list[int], parent: bytes
) -> None:
    packed = struct.pack(f"<{len(tokens)}I", *tokens)
    assert block_key(parent, tokens) == sha256(parent + packed).digest()


@given(FIELDS, FIELDS)
def test_a_root_key_differs_wherever_any_field_does(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert (root_key(**a) == root_key(**b)) == (a == b)


@given(FIELDS, st.binary(max_size=4), st.text("ab1", max_size=3))
def test_bytes_moved_between_neighbouring_fields_make_another_root_key(
    fields: dict[str, Any], moved: bytes, name: str
) -> None:
    assume(moved and name)
    left = {**fields, "adapter": b"x" + moved, "salt": b"y"}
    right = {**fields, "adapter": b"x", "salt": moved + b"y"}
    assert root_key(**left) != root_key(**right)
    left = {**fields, "kv_dtype": "bf16" + name, "numerics": "n"}
    right = {**fields, "kv_dtype": "bf16", "numerics": name + "n"}
    assert root_key(**left) != root_key(**right)


@given(FIELDS, st.binary(max_size=8), st.lists(TOKENS, max_size=3), st.lists(TOKENS, max_size=3))
def test_no_tenant_ever_shares_with_another_salt(
    fields: dict[str, Any], other: bytes, ours: list[list[int]], theirs: list[list[int]]
) -> None:
    assume(other != fields["salt"])
    size = 1 + fields["block_size"] % 3
    here = {key for t in ours for key in KeyChain(root_key(**fields), size, t).keys}
    there = root_key(**{**fields, "salt": other})
    assert here.isdisjoint(key for t in [*ours, *theirs] for key in KeyChain(there, size, t).keys)


@given(TOKENS, TOKENS, st.integers(1, 4))
def test_two_sequences_share_a_key_exactly_as_far_as_their_tokens_agree(
    a: list[int], b: list[int], block_size: int
) -> None:
    a_keys, b_keys = (KeyChain(b"root", block_size, tokens).keys for tokens in (a, b))
    agreeing = 0
    while agreeing < min(len(a), len(b)) and a[agreeing] == b[agreeing]:
        agreeing += 1
    assert len(set(a_keys) & set(b_keys)) == agreeing // block_size


@given(st.lists(TOKENS, max_size=5), st.integers(1, 5))
def test_a_chain_that_grows_in_pieces_equals_one_made_at_once(
    pieces: list[list[int]], block_size: int
) -> None:
    growing = KeyChain(b"root", block_size)
    for piece in pieces:
        growing.extend(piece)
    tokens = [token for piece in pieces for token in piece]
    expected, parent = [], b"root"
    for start in range(0, len(tokens) - block_size + 1, block_size):
        parent = block_key(parent, tokens[start : start + block_size])
        expected.append(parent)
    assert list(growing.keys) == expected
    assert list(KeyChain(b"root", block_size, iter(tokens)).keys) == expected


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_that_is_no_uint32_is_refused_and_nothing_is_appended(token: int) -> None:
    chain = KeyChain(b"root", 2, [1])
    with pytest.raises(OverflowError):
        chain.extend([2, 3, token])
    chain.extend([2])
    assert list(chain.keys) == [block_key(b"root", [1, 2])]


@pytest.mark.parametrize(
    ("num_tokens", "block_size", "full_blocks"),
    [(0, 4, 0), (1, 4, 0), (3, 4, 0), (4, 4, 1), (5, 4, 1), (256, 256, 1), (257, 256, 1)],
)
def test_only_full_blocks_have_a_key(num_tokens: int, block_size: int, full_blocks: int) -> None:
    assert len(KeyChain(b"root", block_size, range(num_tokens)).keys) == full_blocks
