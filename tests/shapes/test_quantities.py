import pytest

from kvikk.errors import ModelError
from kvikk.shapes.quantities import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("80GB", 80 * 2**30),
        ("2GiB", 2 * 2**30),
        ("2g", 2 * 2**30),
        ("500MB", 500 * 2**20),
        ("1.5 GiB", 3 * 2**29),
        (".5k", 512),
        ("1 TiB", 2**40),
        ("4096", 4096),
        ("12 B", 12),
    ],
)
def test_every_unit_is_binary(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "two", "-1GB", "1,5GB", "1PB", "1GBs", "0x10", "inf"])
def test_what_is_no_amount_is_told_with_an_example(text: str) -> None:
    with pytest.raises(ModelError, match="2GiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (23_040, "22.5 KiB"),
        (300 * 2**20, "300 MiB"),
        (1.21 * 2**30, "1.21 GiB"),
        (5000 * 2**40, "5000 TiB"),
    ],
)
def test_amounts_are_written_with_a_binary_unit_and_three_digits(
    num_bytes: float, expected: str
) -> None:
    assert format_bytes(num_bytes) == expected
