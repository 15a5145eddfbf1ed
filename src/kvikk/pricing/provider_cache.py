"""What a provider would have read, written and billed plainly, request after request.

Nothing here looks at a clock or at a real cache: both come with each request. A server hands in
what its own cache held; who only has a log hands in ``EVERYTHING``, a cache without limits.
"""

import sys
from dataclasses import dataclass

from kvikk.pricing.boundaries import Plan, Point, plan
from kvikk.pricing.caching import Caching, Units
from kvikk.pricing.decision import Decision, Reason, Span, joined
from kvikk.pricing.entries import MOST_ENTRIES, Entries, Entry, Facets
from kvikk.pricing.prompt import SECTIONS, ProviderPrompt, Section


@dataclass(frozen=True, slots=True)
class Held:
    """How much of a prompt the real cache held when it arrived: whole blocks from its start."""

    num_tokens: int
    block_size: int = 1

    def covers(self, boundary: int) -> bool:
        """Whether all full blocks below ``boundary`` are held, which makes an exact count true."""
        return boundary // self.block_size * self.block_size <= self.num_tokens


EVERYTHING = Held(sys.maxsize)


@dataclass(frozen=True, slots=True)
class _Miss:
    """Up to where an entry was there that could not be read, and why not."""

    num_tokens: int
    reason: Reason
    detail: tuple[str, ...] = ()


class ProviderCache:
    """One provider's cache under one set of rules; remembers what was written.

    ``tells_accounts`` lets a miss say that another account has an entry, which is for whoever may
    know of all of them.
    """

    def __init__(
        self,
        caching: Caching,
        *,
        tells_accounts: bool = False,
        most_entries: int = MOST_ENTRIES,
    ) -> None:
        self.caching = caching
        self._tells_accounts = tells_accounts
        self._entries = Entries(most_entries)
        # Prefixes that one request had: a second one makes a unit of what they have in common.
        self._seen = Entries(most_entries)

    def bill(
        self,
        prompt: ProviderPrompt,
        *,
        started_s: float,
        first_byte_s: float,
        held: Held = EVERYTHING,
    ) -> Decision:
        """Decide about one request, and remember what it wrote.

        ``started_s`` is when it arrived, ``first_byte_s`` when its response began: only requests
        that start later may read what it wrote. Requests are handed in by either; nothing else
        about their order matters.
        """
        found = plan(self.caching, prompt)
        facets = {section: self._facets(prompt, section) for section in SECTIONS}
        read = self._read(found, facets, started_s, held)
        miss = self._miss(found, facets, started_s, held, read)
        writes = (*found.writable, *self._in_common(found, facets, started_s))
        self._write(writes, facets, started_s, first_byte_s, held)
        return self._decide(prompt, found, read, miss)

    def answered(
        self, prompt: ProviderPrompt, digest: bytes, *, started_s: float, ended_s: float
    ) -> None:
        """An answer is complete: ``digest`` names its prompt and it. Some providers keep that."""
        if not isinstance(self.caching.scheme, Units):
            return
        lifetime = self.caching.lifetimes[self.caching.lifetime_name(prompt.lifetime)]
        facets = self._facets(prompt, "messages")
        self._entries.put(digest, Entry(facets, lifetime, started_s, ended_s, started_s))

    def _facets(self, prompt: ProviderPrompt, section: Section) -> Facets:
        """What must be equal for a boundary in ``section``, beside the text."""
        names = [
            name
            for reached in SECTIONS[: SECTIONS.index(section) + 1]
            for name in self.caching.parameters.get(reached, ())
        ]
        return (
            ("account", prompt.account),
            ("model", prompt.model),
            ("cache_key", prompt.cache_key if self.caching.key_separates else ""),
            *((name, prompt.parameters.get(name, "")) for name in names),
        )

    def _read(self, found: Plan, facets: dict[Section, Facets], now_s: float, held: Held) -> int:
        """Tokens up to the furthest entry that can be read; refreshes it and those in front."""
        read = 0
        for point in reversed(found.readable):
            entry = self._entries.find(point.digest, facets[point.section])
            if entry is None or not entry.is_alive(now_s) or now_s < entry.readable_s:
                continue
            if held.covers(point.num_tokens):
                read = read or point.num_tokens
                self._entries.use(point.digest, entry, now_s)
        return read

    def _miss(
        self,
        found: Plan,
        facets: dict[Section, Facets],
        now_s: float,
        held: Held,
        read: int,
    ) -> _Miss | None:
        """The furthest entry behind what is read, and why it was of no use."""
        for point in reversed(found.readable):
            if point.num_tokens <= read:
                break
            entry = self._entries.find(point.digest, facets[point.section])
            if entry is not None:
                return _Miss(point.num_tokens, self._why_not(entry, point, now_s, held))
            changed = self._entries.nearest(point.digest, facets[point.section], now_s)
            if changed is not None and (self._tells_accounts or "account" not in changed):
                return _Miss(point.num_tokens, Reason.CHANGED, changed)
        for point in reversed(found.out_of_reach):
            entry = self._entries.find(point.digest, facets[point.section])
            if entry is not None and entry.is_alive(now_s):
                return _Miss(point.num_tokens, Reason.LOOKBACK)
        return None

    def _why_not(self, entry: Entry, point: Point, now_s: float, held: Held) -> Reason:
        if now_s < entry.readable_s:
            return Reason.NOT_READABLE_YET
        if not entry.is_alive(now_s):
            return Reason.EXPIRED
        assert not held.covers(point.num_tokens), "an entry that could be read was not"
        return Reason.NOT_HELD

    def _in_common(
        self, found: Plan, facets: dict[Section, Facets], now_s: float
    ) -> tuple[Point, ...]:
        """For caches of units: the longest prefix that an earlier request had too."""
        if not isinstance(self.caching.scheme, Units):
            return ()
        common: tuple[Point, ...] = ()
        for point in found.readable:
            seen = self._seen.find(point.digest, facets[point.section])
            if seen is not None and seen.is_alive(now_s):
                common = (point,)
            lifetime = self.caching.lifetimes[point.lifetime]
            entry = Entry(facets[point.section], lifetime, now_s, now_s, now_s)
            self._seen.put(point.digest, entry)
        return common

    def _write(
        self,
        points: tuple[Point, ...],
        facets: dict[Section, Facets],
        started_s: float,
        first_byte_s: float,
        held: Held,
    ) -> None:
        """Make the entries that are not there; a live one of another request stays as it is."""
        for point in points:
            entry = self._entries.find(point.digest, facets[point.section])
            if entry is not None and entry.is_alive(started_s) and held.covers(point.num_tokens):
                if started_s < entry.readable_s:  # two write it at once: the first to begin counts
                    entry.readable_s = min(entry.readable_s, first_byte_s)
                continue
            lifetime = self.caching.lifetimes[point.lifetime]
            self._entries.put(
                point.digest,
                Entry(facets[point.section], lifetime, started_s, first_byte_s, started_s),
            )

    def _decide(
        self, prompt: ProviderPrompt, found: Plan, read: int, miss: _Miss | None
    ) -> Decision:
        total = prompt.num_tokens
        spans = [Span(0, read, "read", Reason.ENTRY)]
        if not found.writable and not read:
            reason = Reason.BELOW_MINIMUM if found.below_minimum else Reason.NO_BREAKPOINT
            return Decision(total, joined([Span(0, total, "plain", reason)]))
        missed = max(read, 0 if miss is None else miss.num_tokens)
        at = read
        for point in found.writable:
            if point.num_tokens <= at:
                continue
            stops = sorted({min(max(missed, at), point.num_tokens), point.num_tokens})
            for stop in stops:
                spans.append(self._unread(at, stop, point, miss if stop <= missed else None))
                at = stop
        spans.append(Span(at, total, "plain", Reason.BEHIND_BOUNDARY))
        return Decision(total, joined(spans))

    def _unread(self, start: int, stop: int, point: Point, miss: _Miss | None) -> Span:
        reason = Reason.NEW if miss is None else miss.reason
        detail = () if miss is None else miss.detail
        if not self.caching.bills_writes:
            return Span(start, stop, "plain", reason, detail=detail)
        return Span(start, stop, "written", reason, point.lifetime, detail)
