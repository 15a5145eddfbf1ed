"""Where in a conversation a position of its rendered prompt lies.

A chat template is free to do as it likes with what it is given, so what it made is searched for
each part in turn: the tools, then one message after another.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a conversation and the characters ``start … stop - 1`` of the prompt that it is.

    ``name`` is what a person calls it ("the system message"), ``path`` its place in the request's
    JSON ("messages[0].content").
    """

    name: str
    path: str
    start: int
    stop: int


def place_parts(rendered: str, texts: Iterable[tuple[str, str, str]]) -> tuple[Part, ...]:
    """Find each ``(name, path, text)`` in the prompt, in order; what is not there is left out."""
    parts = []
    start = 0
    for name, path, text in texts:
        stripped = text.strip()  # as many templates do
        found = rendered.find(stripped, start) if stripped else -1
        if found >= 0:
            start = found + len(stripped)
            parts.append(Part(name, path, found, start))
    return tuple(parts)


def part_at(parts: Sequence[Part], position: int) -> Part | None:
    """The part that the character at ``position`` belongs to; None for the template's own words."""
    return next((part for part in parts if part.start <= position < part.stop), None)
