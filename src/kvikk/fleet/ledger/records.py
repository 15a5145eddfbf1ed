"""What replicas and the ingress tell each other of attempts, and what comes of it all."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvikk.cache.ledger.records import Cause, Rates, rates
from kvikk.wire.ledger import LedgerSpan, RequestLedger

# Causes that only a fleet has, beside ``cache.ledger.records.Cause``.
LOST = "lost"  # the replica stopped before it could tell
REFUSED = "refused"  # nobody would take it
LEFT = "left"  # the client had gone before anybody began
FLEET_CAUSES = (LOST, REFUSED, LEFT)

_ORDER = {
    cause: place for place, cause in enumerate([*(one.value for one in Cause), *FLEET_CAUSES])
}
# What a token of theirs would be called if nobody knew that another replica held it.
_BELOW_ELSEWHERE = frozenset(list(Cause)[list(Cause).index(Cause.ELSEWHERE) + 1 :])


@dataclass(frozen=True, slots=True)
class Settled:
    """One attempt, accounted for by the replica that ran it; AssertionError if it does not balance.

    ``spans`` tile the prompt, with the engine's causes, or ``whole`` with one of the fleet's.
    """

    attempt: str
    prompt_tokens: int
    spans: tuple[LedgerSpan, ...]

    def __post_init__(self) -> None:
        stops = [0, *(span.stop for span in self.spans)]
        starts = [*(span.start for span in self.spans), self.prompt_tokens]
        assert stops == starts, f"spans that do not tile {self.prompt_tokens} tokens: {self.spans}"
        assert all(span.num_tokens > 0 for span in self.spans), f"an empty span: {self.spans}"

    @classmethod
    def of(cls, attempt: str, *ledgers: RequestLedger) -> "Settled":
        """An attempt that an engine admitted: all of its ledger, whether it got to its end.

        Several ``ledgers``, of a list of texts that become vectors, lie one behind the other.
        """
        spans: list[LedgerSpan] = []
        num_tokens = 0
        for ledger in ledgers:
            for span in ledger.spans:
                start, stop = num_tokens + span.start, num_tokens + span.stop
                spans.append(replace(span, start=start, stop=stop))
            num_tokens += ledger.prompt_tokens
        return cls(attempt, num_tokens, tuple(spans))

    @classmethod
    def whole(cls, attempt: str, prompt_tokens: int, cause: str) -> "Settled":
        """All of the prompt for one cause: ``refused`` or ``left``, where no engine admitted it."""
        return cls(attempt, prompt_tokens, (LedgerSpan(0, prompt_tokens, cause),))

    @classmethod
    def empty(cls, attempt: str) -> "Settled":
        """One that had no prompt after all: a body that makes no sense, say."""
        return cls(attempt, 0, ())


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Another ``replica`` held the first ``held_tokens``; ``because`` as in ``router.records``."""

    held_tokens: int
    replica: str
    because: str


def scattered(spans: tuple[LedgerSpan, ...], elsewhere: Elsewhere | None) -> tuple[LedgerSpan, ...]:
    """The same with ``elsewhere`` where it comes before what an engine can say, which knows itself.

    engine       [hit.device )[ new                     )[ tail )
    held there   ───────────────────────────┤
    scattered    [hit.device )[ elsewhere   )[ new      )[ tail )
    """
    if elsewhere is None:
        return spans
    detail = {"replica": elsewhere.replica, "because": elsewhere.because}
    found: list[LedgerSpan] = []
    for span in spans:
        cut = min(elsewhere.held_tokens, span.stop)
        if span.cause not in _BELOW_ELSEWHERE or cut <= span.start:
            found.append(span)
            continue
        if found and (found[-1].cause, found[-1].detail) == (Cause.ELSEWHERE.value, detail):
            found[-1] = LedgerSpan(found[-1].start, cut, Cause.ELSEWHERE.value, detail)
        else:
            found.append(LedgerSpan(span.start, cut, Cause.ELSEWHERE.value, detail))
        if cut < span.stop:
            found.append(LedgerSpan(cut, span.stop, span.cause, span.detail))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the ingress has of one epoch: all numbers up to ``through``, and these ``beyond``."""

    through: int = 0
    beyond: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """What an ingress has, by epoch, and the attempts it waits for, by replica."""

    ingress: str
    receipts: Mapping[str, Receipt] = field(default_factory=dict)
    owed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batch:
    """Numbered records of one epoch. Numbers count from 1.

    What is not in it up to ``gone_through`` never comes again: it has arrived, or was dropped for
    want of room. Of ``unknown`` attempts, which were asked for, the replica knows nothing.
    """

    replica: str
    epoch: str
    gone_through: int
    records: tuple[tuple[int, Settled], ...]
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetTotals:
    """Prompt tokens of requests by cause; beside them those of attempts that were made in vain.

    A request counts once, by its last attempt; ``superseded_by_cause`` has the ones before.
    ``open_tokens`` are of ``open_attempts`` that run, or whose record has not come yet. Of records,
    ``late`` ones came for what was booked as lost, ``repeated`` ones count for nothing, and
    ``gaps`` were seen in their numbers. Replicas counted ``corrected_tokens`` more (or fewer) than
    the ingress had, which may only guess where it has no tokeniser.
    """

    requests: int = 0
    by_cause: Mapping[str, int] = field(default_factory=dict)
    superseded_attempts: int = 0
    superseded_by_cause: Mapping[str, int] = field(default_factory=dict)
    open_attempts: int = 0
    open_tokens: int = 0
    late: int = 0
    repeated: int = 0
    corrected_tokens: int = 0
    gaps: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Of all requests that have ended and are accounted for."""
        return sum(self.by_cause.values())

    @property
    def rates(self) -> Rates:
        """Shares of the tokens that an engine has accounted for."""
        return rates({Cause(c): n for c, n in self.by_cause.items() if c not in FLEET_CAUSES})


def summed(*parts: Mapping[str, int]) -> dict[str, int]:
    """Tokens by cause of all ``parts``, in order of precedence, none that are 0."""
    causes = sorted({cause for part in parts for cause in part}, key=lambda one: _ORDER[one])
    sums = {cause: sum(part.get(cause, 0) for part in parts) for cause in causes}
    return {cause: tokens for cause, tokens in sums.items() if tokens}
