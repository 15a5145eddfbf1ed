"""Amounts of memory as people write them, to bytes and back."""

import re

from kvikk.errors import ModelError

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([KMGT]?)(I?B)?\s*", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Bytes from ``2GiB``, ``500MB``, ``1.5 g`` or a bare number of bytes.

    Every unit is binary, as the field uses them: ``80GB`` is 80 * 2**30. Raises ModelError.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ModelError(f"{text!r} is not an amount of memory; write for example 2GiB or 500MiB")
    number, unit, _ = match.groups()
    return int(float(number) * 1024 ** _POWERS[unit.upper()])


def format_bytes(num_bytes: float) -> str:
    """With a binary unit and about three digits: ``512 B``, ``22.5 KiB``, ``1.21 GiB``."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while num_bytes >= 1024 and len(units) > 1:
        num_bytes /= 1024
        units.pop(0)
    digits = 0 if units[0] == "B" or num_bytes >= 100 else 1 if num_bytes >= 10 else 2
    return f"{num_bytes:.{digits}f} {units[0]}"
