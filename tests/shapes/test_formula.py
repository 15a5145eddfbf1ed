"""The formula written out for people gives, worked out, what the arithmetic gives."""

import re
from fractions import Fraction

import pytest

from kvikk.shapes.cost import cache_cost
from kvikk.shapes.dtypes import kv_dtypes
from kvikk.shapes.families import read_shape
from kvikk.shapes.formula import terms
from tests.shapes.configurations import published, published_names


def worked_out(text: str) -> Fraction:
    """A product as it is printed: ``2 · 8 KV heads · (192 + 128) · 2 bytes · 9 layers``."""
    plain = re.sub(r"for every (\d+)", r"· 1/\1", text)
    plain = re.sub(r"[A-Za-z,]+", "", plain)
    total = Fraction(1)
    for factor in plain.split("·"):
        depth = factor.strip().strip("()")
        total *= sum(Fraction(part.strip().replace(" ", "")) for part in depth.split("+"))
    return total


@pytest.mark.parametrize("name", published_names())
@pytest.mark.parametrize("dtype", [None, "f32", "fp8"])
def test_every_term_is_what_it_says(name: str, dtype: str | None) -> None:
    shape = read_shape(published(name))
    packed = shape.kv_dtype == "fp8_ds_mla"
    if packed and dtype == "fp8":
        dtype = None  # the only fp8 that it has
    types = kv_dtypes(dtype or shape.kv_dtype)
    found = terms(shape, types)
    for term in found:
        assert worked_out(term.text) == Fraction(term.bytes_per_token or term.fixed_bytes)
    cost = cache_cost(shape, types)
    assert sum(term.bytes_per_token for term in found) == cost.bytes_per_token
    assert sum(term.fixed_bytes for term in found) == cost.fixed_bytes
