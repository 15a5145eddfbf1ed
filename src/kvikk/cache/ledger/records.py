"""The ledger's records: one cause for each prompt token, in spans that tile the prompt.

    position   0 ········ 96 ····· 110 ········ 1408 ······ 1420
               [hit.device )[partial )[   moved     )[ tail    )

No gap, no overlap: the parts add up to the prompt, exactly. ``Ledger`` refuses to exist otherwise.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum


class Cause(StrEnum):
    """Why a prompt token was reused or computed, in order of precedence."""

    HIT_DEVICE = "hit.device"
    HIT_HOST = "hit.host"
    HIT_DISK = "hit.disk"
    HIT_REMOTE = "hit.remote"
    TAIL = "tail"  # behind the last block boundary that a hit could reach at all
    PARTIAL = "partial"  # equal to a cached block up to a point inside it
    IN_FLIGHT = "in_flight"  # another request was computing them at that moment
    ELSEWHERE = "elsewhere"  # resident on another replica
    EVICTED = "evicted"  # resident here once, and made room for something else
    EXPIRED = "expired"  # dropped by a reset, a time limit or an idle policy
    CHANGED = "changed"  # resident under another model, adapter, KV type or numerics
    ISOLATED = "isolated"  # resident under another tenant's salt; the operator's to know
    MOVED = "moved"  # seen before, behind a different prefix
    NEW = "new"  # never seen

    @property
    def is_hit(self) -> bool:
        """Whether the token was reused."""
        return self.value.startswith("hit.")


# What an operator could have turned into hits: nothing evicted, dropped, scattered, computed twice.
OPERATORS_CAUSES = (Cause.IN_FLIGHT, Cause.ELSEWHERE, Cause.EVICTED, Cause.EXPIRED)


@dataclass(frozen=True, slots=True)
class Detail:
    """What else is known of a span; None or empty where it does not apply.

    ``sequence`` is the other sequence that it is about: who computed a hit, who was computing, who
    took an evicted block's place, where a moved run was seen. ``waited`` says that a hit was waited
    for. An evicted or expired span went ``seconds_ago``; a pool of ``more_blocks`` more blocks (of
    its ``group``) would have kept it, if no other hit had come of them. ``part`` is what changed of
    a root key, or what dropped an expired block. A moved run begins at ``seen_at`` in the other
    sequence; both have the same tokens up to ``differs_at``, and from there to the run ``value`` in
    this one, ``seen_value`` in the other (their first tokens, where they are long). ``tier`` had an
    evicted span, and loading it would have taken longer than computing it.
    """

    sequence: int | None = None
    waited: bool = False
    seconds_ago: float | None = None
    more_blocks: int | None = None
    group: int | None = None
    part: str | None = None
    tier: str | None = None
    seen_at: int | None = None
    differs_at: int | None = None
    value: tuple[int, ...] = ()
    seen_value: tuple[int, ...] = ()


NOTHING = Detail()


@dataclass(frozen=True, slots=True)
class Origins:
    """What slower tiers had of a prompt: the cause of each block of its hit (empty: all of them
    from the pool), and the blocks that were in ``passed_tier`` and not worth a load.
    """

    causes: tuple[Cause, ...] = ()
    passed_over: range = range(0)
    passed_tier: str | None = None


NO_ORIGINS = Origins()


@dataclass(frozen=True, slots=True)
class Span:
    """Prompt positions ``start … stop - 1`` and what became of them."""

    start: int
    stop: int
    cause: Cause
    detail: Detail = NOTHING

    @property
    def num_tokens(self) -> int:
        """Tokens in it."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Ledger:
    """One request's prompt, accounted for. AssertionError for spans that do not balance.

    ``spans`` is for the operator. ``own_spans`` is what the tenant may see: the same, as if no
    other tenant existed.
    """

    num_tokens: int
    spans: tuple[Span, ...]
    own_spans: tuple[Span, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.own_spans:
            object.__setattr__(self, "own_spans", self.spans)
        for spans in (self.spans, self.own_spans):
            stops = [0, *(span.stop for span in spans)]
            starts = [*(span.start for span in spans), self.num_tokens]
            assert stops == starts, f"spans that do not tile {self.num_tokens} tokens: {spans}"
            assert all(span.num_tokens > 0 for span in spans), f"an empty span: {spans}"
        assert not any(span.cause is Cause.ISOLATED for span in self.own_spans)

    @property
    def hit_tokens(self) -> int:
        """Tokens reused."""
        return sum(span.num_tokens for span in self.spans if span.cause.is_hit)

    def totals(self, own: bool = False) -> dict[Cause, int]:
        """Tokens by cause; they add up to ``num_tokens``."""
        return add_up(self.own_spans if own else self.spans)


def add_up(spans: Iterable[Span]) -> dict[Cause, int]:
    """Tokens by cause, in order of precedence; causes without tokens are left out."""
    totals = dict.fromkeys(Cause, 0)
    for span in spans:
        totals[span.cause] += span.num_tokens
    return {cause: tokens for cause, tokens in totals.items() if tokens}


def joined(spans: Iterable[Span]) -> Iterator[Span]:
    """The same with empty spans dropped and neighbours that say the same made one."""
    open_span: Span | None = None
    for span in spans:
        if span.num_tokens == 0:
            continue
        if open_span is None:
            open_span = span
        elif (span.cause, span.detail) == (open_span.cause, open_span.detail):
            open_span = Span(open_span.start, span.stop, span.cause, span.detail)
        else:
            yield open_span
            open_span = span
    if open_span is not None:
        yield open_span


@dataclass(frozen=True, slots=True)
class Rates:
    """Shares of prompt tokens: reused, and what could have been. Of tokens, never of ratios."""

    achieved: float
    attainable_by_operator: float
    attainable_by_author: float


def rates(totals: dict[Cause, int]) -> Rates:
    """The three rates of tokens by cause; all 0 of none."""
    prompt = max(1, sum(totals.values()))
    hits = sum(tokens for cause, tokens in totals.items() if cause.is_hit)
    operator = hits + sum(totals.get(cause, 0) for cause in OPERATORS_CAUSES)
    author = operator + totals.get(Cause.MOVED, 0)
    return Rates(hits / prompt, operator / prompt, author / prompt)
