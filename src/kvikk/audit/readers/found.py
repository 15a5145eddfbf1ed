"""What a reader finds in a record, before it is an exchange."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Found:
    """A body and what is known beside it; ``known`` are further fields of an exchange."""

    body: dict[str, Any]
    api: str = ""
    provider: str = ""
    response: object = None
    upstream: object = None
    usage: object = None
    known: dict[str, Any] = field(default_factory=dict)


def text(record: Mapping[str, Any], name: str) -> str:
    """A text of a record; "" for anything else."""
    value = record.get(name)
    return value if isinstance(value, str) else ""


def number(record: Mapping[str, Any], name: str) -> float | None:
    """A finite number of a record; None for anything else."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def whole(record: Mapping[str, Any], name: str) -> int | None:
    """A whole number of a record; None for anything else."""
    value = record.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
