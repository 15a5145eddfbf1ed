"""What the walkers share: JSON as sent, lists that are not lists, and pieces put in order.

Walkers take bodies from anybody's log, so they never refuse: what they do not know is a piece of
kind ``other``, and what is of a wrong type is left out.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from kvikk.wire.segments import Marker, Section, Segment


def dump(value: object) -> str:
    """JSON of ``value``, its keys in the order of the body; a string as it is."""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # a whole number of more than 64 bits
        return repr(value)


def elements(value: object, path: str) -> Iterator[tuple[Any, str]]:
    """The elements of a list with their paths; none of anything else."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield item, f"{path}[{index}]"


def without(value: dict[str, Any], *names: str) -> dict[str, Any]:
    """``value`` without those members."""
    return {name: member for name, member in value.items() if name not in names}


def mapping(value: object) -> dict[str, Any]:
    """``value`` if it is an object; an empty one otherwise."""
    return value if isinstance(value, dict) else {}


def cache_control(block: object, path: str) -> Marker | None:
    """The marker that Anthropic's ``cache_control`` in ``block`` is."""
    control = mapping(block).get("cache_control")
    if not isinstance(control, dict):
        return None
    return Marker(f"{path}.cache_control", str(control.get("ttl") or ""))


def message(
    pieces: Iterable[Segment], section: Section, role: str, index: int | None
) -> list[Segment]:
    """The pieces of one message: they get its role and index, the last one ends it."""
    listed = list(pieces)
    return [
        Segment(
            path=piece.path,
            section=section,
            kind=piece.kind,
            text=piece.text,
            role=piece.role or role,
            message=index,
            ends_message=place == len(listed) - 1,
            marker=piece.marker,
        )
        for place, piece in enumerate(listed)
    ]


def mark_last(segments: list[Segment], marker: Marker) -> None:
    """Set ``marker`` on the last piece, in place; a marker that it has stays."""
    if segments and segments[-1].marker is None:
        last = segments[-1]
        segments[-1] = Segment(
            path=last.path,
            section=last.section,
            kind=last.kind,
            text=last.text,
            role=last.role,
            message=last.message,
            ends_message=last.ends_message,
            marker=marker,
        )
