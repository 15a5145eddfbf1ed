"""What a provider bills for a prompt: spans read, written and plain that tile it exactly.

tokens    0 ················ 2,300 ····· 2,340 ··· 2,345
          [  read: entry      )[ written: new )[ plain: behind_boundary )
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

Kind = Literal["read", "written", "plain"]


class Reason(StrEnum):
    """The rule that made a span what it is."""

    ENTRY = "entry"  # an earlier request wrote this prefix, and it may be read
    BELOW_MINIMUM = "below_minimum"  # no boundary is far enough from the start
    NO_BREAKPOINT = "no_breakpoint"  # only markers count, and there is none
    EXPIRED = "expired"  # an entry of it was there and has outlived its time
    NOT_READABLE_YET = "not_readable_yet"  # being written; its response had not begun
    CHANGED = "changed"  # an entry of the same text under another account, key or parameter
    LOOKBACK = "lookback"  # an entry lies too many positions before the marker
    NOT_HELD = "not_held"  # the entry is there, the real cache's blocks are not
    NEW = "new"  # no entry was ever written at a boundary of this text
    BEHIND_BOUNDARY = "behind_boundary"  # after the last place where the cache may cut


@dataclass(frozen=True, slots=True)
class Span:
    """Prompt tokens ``start … stop - 1``. ``lifetime`` is of what is written; ``detail`` names the
    parts of the key that changed.
    """

    start: int
    stop: int
    kind: Kind
    reason: Reason
    lifetime: str = ""
    detail: tuple[str, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens in it."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Decision:
    """One prompt, billed. AssertionError for spans that do not tile ``num_tokens``."""

    num_tokens: int
    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        stops = [0, *(span.stop for span in self.spans)]
        starts = [*(span.start for span in self.spans), self.num_tokens]
        assert stops == starts, f"spans that do not tile {self.num_tokens} tokens: {self.spans}"
        assert all(span.num_tokens > 0 for span in self.spans), f"an empty span: {self.spans}"

    @property
    def read_tokens(self) -> int:
        """Tokens read from an entry."""
        return self._count("read")

    @property
    def written_tokens(self) -> int:
        """Tokens written at a price of their own."""
        return self._count("written")

    @property
    def plain_tokens(self) -> int:
        """Tokens at the input price."""
        return self._count("plain")

    @property
    def written_by_lifetime(self) -> dict[str, int]:
        """Tokens written, by the lifetime that was asked for."""
        totals: dict[str, int] = {}
        for span in self.spans:
            if span.kind == "written":
                totals[span.lifetime] = totals.get(span.lifetime, 0) + span.num_tokens
        return totals

    def _count(self, kind: Kind) -> int:
        return sum(span.num_tokens for span in self.spans if span.kind == kind)


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same with empty spans left out and neighbours that say the same made one."""
    result: list[Span] = []
    for span in spans:
        if not span.num_tokens:
            continue
        last = result[-1] if result else None
        if last is not None and (last.kind, last.reason, last.lifetime, last.detail) == (
            span.kind,
            span.reason,
            span.lifetime,
            span.detail,
        ):
            result[-1] = replace(last, stop=span.stop)
        else:
            result.append(span)
    return tuple(result)
