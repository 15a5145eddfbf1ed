"""The story of a request's prompt in plain words: what was reused, what was not, why, and the mend.

A story is told to one reader: the operator, or a tenant who must learn nothing of others.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvikk.cache.ledger.records import Cause, Detail, Span
from kvikk.engine.accounts import Account
from kvikk.text.places import Part, part_at
from kvikk.text.tokenizer import Tokenizer
from kvikk.text.volatile import Difference, ValueKind, difference

# So many tokens around a value are looked at, to see all of the word it is in.
_AROUND_TOKENS = 24

# What is only short-lived by nature has no place in front of what stays.
_ADVICE = {
    ValueKind.TIME: "move the clock below what stays the same, or round it to the day",
    ValueKind.DATE: "move the date below what stays the same; it changes once a day",
    ValueKind.AGE: "say when it was instead of how long ago; that does not change",
    ValueKind.UUID: "move the identifier below what stays the same, or leave it out",
    ValueKind.IDENTIFIER: "move the identifier below what stays the same, or leave it out",
    ValueKind.COUNTER: "move the number below what stays the same, or leave it out",
    ValueKind.PATH: "move what depends on the path below what stays the same",
    ValueKind.USER_NAME: "move what is personal below what all users share",
    ValueKind.OTHER: "put what stays the same first and what changes last",
}


@dataclass(frozen=True)
class Finding:
    """One cause of tokens that were computed: ``text`` says what happened, ``mend`` what helps."""

    cause: Cause
    start: int
    tokens: int
    text: str
    mend: str | None = None
    difference: Difference | None = None
    part: Part | None = None


@dataclass(frozen=True)
class Story:
    """A headline and its findings, most tokens first."""

    request_id: str
    prompt_tokens: int
    reused_tokens: int
    findings: tuple[Finding, ...]

    @property
    def headline(self) -> str:
        """What was reused of how much."""
        share = self.reused_tokens / self.prompt_tokens
        return (
            f"reused {self.reused_tokens:,} of {self.prompt_tokens:,} prompt tokens ({share:.0%})"
        )


@dataclass(frozen=True)
class PoolGroup:
    """One group's pool, as stories need it; ``block_bytes`` 0 is unknown."""

    window_tokens: int | None
    num_blocks: int
    block_bytes: int

    @property
    def name(self) -> str:
        """What it is called in a story."""
        window = self.window_tokens
        return "full group" if window is None else f"window group of {window:,}"


@dataclass(frozen=True)
class Storyteller:
    """Knows what a story needs beside the ledger.

    ``tokens_of`` gives the tokens of a sequence while they are remembered, ``name`` the request of
    a sequence as far as this reader may know it. ``keeps_apart``: tenants' shares or pins hold
    blocks that the figures of more memory take for anybody's.
    """

    tokenizer: Tokenizer | None
    tokens_of: Callable[[int], Sequence[int] | None]
    name: Callable[[int | None], str | None]
    groups: Sequence[PoolGroup]
    block_size: int
    for_operator: bool
    keeps_apart: bool = False

    def spans(self, account: Account) -> tuple[Span, ...]:
        """What this reader may see of a request."""
        return account.spans(self.for_operator)

    def window_tokens(self, span: Span) -> int | None:
        """The window of the group that a span is about; None of one that keeps all tokens."""
        group = span.detail.group
        return None if group is None else self.groups[group].window_tokens

    def tell(self, account: Account) -> Story:
        """The story of one request."""
        spans = self.spans(account)
        findings = [
            finding
            for cause, together in _told_together(spans)
            for finding in [self._finding(account, cause, together)]
            if finding is not None
        ]
        findings.sort(key=lambda finding: -finding.tokens)
        return Story(
            account.request_id,
            account.ledger.num_tokens,
            sum(span.num_tokens for span in spans if span.cause.is_hit),
            tuple(findings),
        )

    def _finding(self, account: Account, cause: Cause, spans: list[Span]) -> Finding | None:
        if cause.is_hit:
            return None
        if cause is Cause.MOVED:
            return self._moved(account, spans)
        tokens = sum(span.num_tokens for span in spans)
        text, mend = self._plain(cause, spans, tokens)
        return Finding(cause, spans[0].start, tokens, text, mend)

    def _plain(self, cause: Cause, spans: list[Span], tokens: int) -> tuple[str, str | None]:
        detail = spans[0].detail
        other = self.name(detail.sequence)
        text = f"{tokens:,} token" + ("s" if tokens > 1 else "")
        mend = None
        if cause is Cause.EVICTED:
            return self._evicted(spans, text, other)
        if cause is Cause.TAIL:
            text += " at the end lie behind the last block boundary that a hit can reach (blocks "
            text += f"of {self.block_size}; at least one token always runs)"
        elif cause is Cause.PARTIAL:
            text += f" are the same as {_whose(other, 'in')} but end inside a block; blocks are "
            text += f"shared whole ({self.block_size} tokens)"
            mend = "a smaller --block-size loses less at such places"
        elif cause is Cause.IN_FLIGHT:
            text += f" were being computed for {_whose(other)} at that moment"
            mend = "send the first of several like requests alone, the rest after its first token"
        elif cause is Cause.EXPIRED:
            text += f" were here and were dropped by a {detail.part}{_ago(detail)}"
        elif cause is Cause.CHANGED:
            text += f" are here, but computed under another {detail.part}"
        elif cause is Cause.ISOLATED:
            text += " are here under another tenant's salt"
            mend = "tenants that trust each other can share one key or one cache_salt"
        else:
            text += " were never seen before"
        return text, mend

    def _evicted(self, spans: list[Span], count: str, other: str | None) -> tuple[str, str | None]:
        detail = spans[0].detail
        if detail.tier is not None:
            text = f"{count} are in the {detail.tier} tier, and computing them took less time"
            return f"{text} than loading them would have", None
        group = None if detail.group is None else self.groups[detail.group]
        room = f"for {_whose(other)}" if other is not None else "for others"
        if group is None or len(self.groups) == 1:
            text = f"{count} were here{_ago(detail, 'until')} and made room {room}"
        else:
            text = f"{count} were evicted from the {group.name}{_ago(detail)} and made room {room}"
            if group.window_tokens is not None and _keeps_all(self.groups):
                text += "; the full group kept them"
        more = max(span.detail.more_blocks or 0 for span in spans)
        if group is None or not more:
            return text, "more memory for KV blocks (--kv-memory) keeps prompts longer"
        size_mib = more * group.block_bytes / 2**20
        size = f" ({size_mib:,.1f} MiB)" if size_mib else ""
        text += f"; {more:,} more blocks{size} would have kept them"
        if self.keeps_apart:
            text += " (tenants' shares and pins left out)"
        if not size_mib:
            return text, f"{more:,} blocks more"
        return text, f"raise --kv-memory by {self._raise_mib(group, more):,} MiB or more"

    def _raise_mib(self, group: PoolGroup, more_blocks: int) -> int:
        """What gives one group so many blocks more: all groups grow together."""
        all_bytes = sum(one.num_blocks * one.block_bytes for one in self.groups)
        return math.ceil(more_blocks / group.num_blocks * all_bytes / 2**20)

    def _moved(self, account: Account, spans: list[Span]) -> Finding:
        tokens = sum(span.num_tokens for span in spans)
        detail, start = spans[0].detail, spans[0].start
        other = _whose(self.name(detail.sequence), "in")
        share = (tokens + account.ledger.hit_tokens) / account.ledger.num_tokens
        text = f"{tokens:,} tokens were seen before {other}, behind a different beginning"
        if detail.differs_at is None:
            return Finding(Cause.MOVED, start, tokens, text, _ADVICE[ValueKind.OTHER])
        text += f": it differs at token {detail.differs_at:,}"
        found = self.difference(account, spans[0])
        if found is None:
            return Finding(Cause.MOVED, start, tokens, text, _ADVICE[ValueKind.OTHER])
        part = self.part(account, detail.differs_at)
        text += f", {_quoted(found.value)} against {_quoted(found.other)}, a {found.kind}"
        text += f" in {part.name}" if part is not None else ""
        mend = f"{_ADVICE[found.kind]}: {share:.0%} would be reused"
        return Finding(Cause.MOVED, start, tokens, text, mend, found, part)

    def difference(self, account: Account, span: Span) -> Difference | None:
        """The values that differ in front of a run, as text."""
        detail = span.detail
        prompt = self.tokens_of(account.sequence)
        if self.tokenizer is None or prompt is None or detail.differs_at is None:
            return None
        first = max(0, detail.differs_at - _AROUND_TOKENS)
        stop = span.start + _AROUND_TOKENS
        before, value, other, after = (
            self.tokenizer.decode(tokens, special=True)
            for tokens in (
                prompt[first : detail.differs_at],
                detail.value,
                detail.seen_value,
                prompt[span.start : stop],
            )
        )
        return difference(before, value, other, after)

    def part(self, account: Account, token: int) -> Part | None:
        """The part of the conversation that a token of the prompt lies in."""
        prompt = self.tokens_of(account.sequence)
        if self.tokenizer is None or prompt is None:
            return None
        position = len(self.tokenizer.decode(prompt[:token], special=True))
        return part_at(account.parts, position)


def _told_together(spans: Sequence[Span]) -> Iterator[tuple[Cause, list[Span]]]:
    """Spans that one sentence can tell of."""
    together: dict[object, list[Span]] = {}
    for span in spans:
        detail = span.detail
        alike = (span.cause, detail.sequence, detail.group, detail.tier)
        together.setdefault(alike, []).append(span)
    for group in together.values():
        yield group[0].cause, group


def _keeps_all(groups: Sequence[PoolGroup]) -> bool:
    return any(group.window_tokens is None for group in groups)


def _whose(request_id: str | None, preposition: str = "") -> str:
    name = "another request" if request_id is None else f"request {request_id}"
    return f"{preposition} {name}".strip()


def _ago(detail: Detail, before: str = "") -> str:
    seconds = detail.seconds_ago
    if seconds is None:
        return ""
    amount = f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return f" {before} {amount} before".replace("  ", " ")


def _quoted(text: str) -> str:
    shown = " ".join(text.split())
    return f'"{shown[:60]}…"' if len(shown) > 60 else f'"{shown}"' if shown else "nothing"
