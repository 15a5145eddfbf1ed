"""A request's prompt as a provider sees it: pieces in the order they are rendered.

Prefix caches compare prompts from position zero on, so what matters of a body is the order of its
pieces, their bytes as sent, where a marker stands and where a message ends.
"""

from dataclasses import dataclass
from typing import Literal

Section = Literal["tools", "system", "messages"]
"""The order of rendering; whatever else a body holds is a parameter, not a piece of the prompt."""


@dataclass(frozen=True, slots=True)
class Marker:
    """A cache breakpoint that the caller set on a piece. ``ttl`` as sent, "" where left out."""

    path: str
    ttl: str = ""


@dataclass(frozen=True, slots=True)
class Segment:
    """One piece of a prompt.

    ``path`` is its place as a JSON path ("$.messages[3].content[0].text"). ``kind`` is what it is:
    ``text``, ``tool_definition``, ``tool_use``, ``tool_result``, ``thinking``, ``image``, ``file``
    or ``other``. ``text`` is the piece as sent: the string itself, or the JSON of a structure with
    its keys in the order of the body. ``message`` is the index of its message, None outside the
    messages; ``ends_message`` says whether it is the last piece of one.
    """

    path: str
    section: Section
    kind: str
    text: str
    role: str = ""
    message: int | None = None
    ends_message: bool = False
    marker: Marker | None = None
