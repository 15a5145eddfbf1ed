"""Keys of content in C, where that was compiled, against XXH3 as its authors have it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvikk.cache.keys import content_keys
from kvikk.router.placement.chunk_keys import CHUNK_BYTES, CHUNK_KEY_BYTES, chunk_keys

texts = st.text(st.characters(exclude_categories=()), max_size=CHUNK_BYTES)


@given(st.binary(max_size=64), st.lists(texts, max_size=9), st.data())
def test_keys_are_the_same_in_any_language(
    root: bytes, parts: list[str], data: st.DataObject
) -> None:
    beginning = data.draw(st.integers(0, len(parts)))
    keys, size, stop, rest = chunk_keys(root, parts, beginning)
    content, begins = (
        "".join(some).encode("utf-8", "surrogatepass") for some in (parts, parts[:beginning])
    )
    assert keys == b"".join(content_keys(root, content, CHUNK_BYTES))
    assert len(keys) == len(content) // CHUNK_BYTES * CHUNK_KEY_BYTES
    assert (size, stop) == (len(content), len(begins))
    assert begins.endswith(rest)
    assert len(rest) == len(begins) % CHUNK_BYTES


@pytest.mark.parametrize(
    "given", [(), ("root", ["x" * CHUNK_BYTES], 0), (b"root", None, 0), (b"root", [b""], 0)]
)
def test_what_is_no_content_has_no_keys(given: tuple) -> None:
    with pytest.raises(TypeError):
        chunk_keys(*given)
