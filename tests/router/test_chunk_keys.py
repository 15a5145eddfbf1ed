"""Keys of content in C, where that was compiled, against XXH3 as its authors have it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvikk.cache.keys import content_keys
from kvikk.router.placement.chunk_keys import CHUNK_BYTES, CHUNK_KEY_BYTES, chunk_keys


@given(st.binary(max_size=64), st.binary(max_size=4 * CHUNK_BYTES), st.integers(0, 9))
def test_keys_are_the_same_in_any_language(root: bytes, content: bytes, times: int) -> None:
    content *= times
    keys = chunk_keys(root, content)
    assert keys == b"".join(content_keys(root, content, CHUNK_BYTES))
    assert len(keys) == len(content) // CHUNK_BYTES * CHUNK_KEY_BYTES


@pytest.mark.parametrize("given", [(), (b"root",), ("root", b"content"), (b"root", None)])
def test_what_is_no_content_has_no_keys(given: tuple) -> None:
    with pytest.raises(TypeError):
        chunk_keys(*given)
