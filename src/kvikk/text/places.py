"""Where in a conversation a position of its rendered prompt lies.

A chat template is free to do as it likes with what it is given, so what it made is searched for
each part in turn: the tools, then one message after another.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A piece of a conversation: what a person calls it, its JSON path, and its text."""

    name: str  # "the system message", "message 3 (user)", "the tools"
    path: str  # "messages[0].content"
    text: str


@dataclass(frozen=True)
class Place:
    """A part of a conversation, and how many characters into it."""

    part: Part
    offset: int


def find_place(rendered: str, position: int, parts: Sequence[Part]) -> Place | None:
    """The part that the character at ``position`` belongs to; None for the template's own words."""
    start = 0
    for part in parts:
        text = part.text.strip()
        found = rendered.find(text, start) if text else -1
        if found < 0:
            continue
        if found <= position < found + len(text):
            leading = len(part.text) - len(part.text.lstrip())
            return Place(part, position - found + leading)
        start = found + len(text)
        if start > position:
            return None
    return None
