"""A prompt as a provider's cache sees it: pieces in rendering order, and what else is compared.

    tokens     0 ····· 300 ········ 2,300 ··· 2,340      2,345
               [ tools )[  system    )[ user  )[ no piece )
                                               the template's own words: they begin the answer

Positions follow each other without gaps from token 0 on; the template's words between two pieces
belong to the later one. Whoever fills this in decides how tokens are counted.
"""

import hashlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Section = Literal["tools", "system", "messages"]
SECTIONS: tuple[Section, ...] = ("tools", "system", "messages")


@dataclass(frozen=True, slots=True)
class Marker:
    """A breakpoint that the caller set. ``ttl`` as sent, "" where left out; ``path`` its place."""

    ttl: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Position:
    """One piece of a prompt: a tool's definition, a block of text, a tool's result.

    ``digest`` names all content from the prompt's start to the end of this piece; equal digests
    mean equal prefixes. Markers and parameters are not part of it.
    """

    num_tokens: int
    digest: bytes
    section: Section = "messages"
    kind: str = "text"
    role: str = ""
    ends_message: bool = False
    marker: Marker | None = None
    path: str = ""


@dataclass(frozen=True, slots=True)
class ProviderPrompt:
    """A request's prompt, with all that decides whether two of them may share an entry.

    ``num_tokens`` counts the whole prompt, also what follows the last position. ``account`` is who
    shares a cache with whom (organisation, workspace, tenant); ``parameters`` are values of the
    body by name, as sent. ``explicit`` says that only markers count; a marker for the whole request
    is one on its last position. ``lifetime`` names the one asked for. ``digest_at`` names the first
    so many tokens, for caches whose boundaries lie inside pieces; without it a piece is one.
    """

    positions: tuple[Position, ...]
    num_tokens: int
    account: str = ""
    model: str = ""
    cache_key: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    explicit: bool = False
    lifetime: str = ""
    digest_at: Callable[[int], bytes] | None = None

    def __post_init__(self) -> None:
        placed = sum(position.num_tokens for position in self.positions)
        assert 0 <= placed <= self.num_tokens, "positions that are more than the prompt"


class TokenDigests:
    """Names prefixes of a list of tokens: ``digests(n)`` is of the first n. SHA-256, kept.

    ``front`` is what must be equal too for any of them to be, and is not among the tokens.
    """

    def __init__(self, token_ids: Sequence[int], front: bytes = b"") -> None:
        self._bytes = array("I", token_ids).tobytes()
        self._item_bytes = array("I").itemsize
        self._front = front
        self._hash = hashlib.sha256(front)
        self._hashed = 0
        self._known: dict[int, bytes] = {}

    def __call__(self, num_tokens: int) -> bytes:
        """The digest of the first ``num_tokens``; cheapest when asked for in ascending order."""
        found = self._known.get(num_tokens)
        if found is None:
            if num_tokens < self._hashed:
                self._hash, self._hashed = hashlib.sha256(self._front), 0
            start, stop = self._hashed * self._item_bytes, num_tokens * self._item_bytes
            self._hash.update(self._bytes[start:stop])
            self._hashed = num_tokens
            found = self._known[num_tokens] = self._hash.digest()
        return found
