"""What became of the prompts of the last requests, and the totals.

The ledgers are the cache's; here they get names and times, are kept for a while, and are added up
by minute. All of it is bounded: so many requests, so many minutes.
"""

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvikk.cache.ledger.records import Cause, Ledger, Rates, Span, rates
from kvikk.engine.requests import Origin
from kvikk.text.places import Part

KEPT_REQUESTS = 4096
KEPT_MINUTES = 24 * 60


@dataclass(frozen=True, slots=True)
class Account:
    """One request's prompt, accounted for.

    ``at_s`` is its admission in seconds since 1970; ``parts`` say where in the rendered prompt each
    piece of its conversation stands.
    """

    request_id: str
    sequence: int
    origin: Origin
    at_s: float
    ledger: Ledger
    parts: tuple[Part, ...] = ()

    def spans(self, for_operator: bool) -> tuple[Span, ...]:
        """What this reader may see of it."""
        return self.ledger.spans if for_operator else self.ledger.own_spans


@dataclass(frozen=True, slots=True)
class Totals:
    """Requests and their prompt tokens by cause."""

    requests: int
    by_cause: dict[Cause, int]

    @property
    def prompt_tokens(self) -> int:
        """All of them."""
        return sum(self.by_cause.values())

    @property
    def rates(self) -> Rates:
        """What was reused, and what could have been."""
        return rates(self.by_cause)


@dataclass(slots=True)
class _Minute:
    """``tokens`` by origin and cause; with a second count as the tenants see it."""

    start_s: float
    requests: Counter[Origin]
    tokens: Counter[tuple[Origin, Cause]]
    own_tokens: Counter[tuple[Origin, Cause]]


class Accounts:
    """The last requests by id, and totals by minute, tenant, key, route and model."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._accounts: OrderedDict[str, Account] = OrderedDict()
        self._ids: dict[int, str] = {}
        self._minutes: deque[_Minute] = deque(maxlen=KEPT_MINUTES)

    def add(
        self,
        request_id: str,
        sequence: int,
        ledger: Ledger,
        origin: Origin,
        parts: tuple[Part, ...] = (),
    ) -> Account:
        """Keep one more."""
        account = Account(request_id, sequence, origin, self._clock(), ledger, parts)
        self._accounts[request_id] = account
        self._ids[sequence] = request_id
        if len(self._accounts) > KEPT_REQUESTS:
            _, oldest = self._accounts.popitem(last=False)
            del self._ids[oldest.sequence]
        minute = self._this_minute()
        minute.requests[origin] += 1
        for counts, own in ((minute.tokens, False), (minute.own_tokens, True)):
            for cause, tokens in ledger.totals(own).items():
                counts[origin, cause] += tokens
        return account

    def find(self, request_id: str) -> Account | None:
        """The account of a request, while it is kept."""
        return self._accounts.get(request_id)

    def name(self, sequence: int | None) -> str | None:
        """The request id of a sequence, while it is kept."""
        return None if sequence is None else self._ids.get(sequence)

    def latest(self, count: int, tenant: str | None = None) -> list[Account]:
        """The last requests, newest first; of one tenant, or of all."""
        found: Iterator[Account] = (
            account
            for account in reversed(self._accounts.values())
            if tenant is None or account.origin.tenant == tenant
        )
        return [account for account, _ in zip(found, range(count), strict=False)]

    def totals(
        self,
        seconds: float | None = None,
        *,
        tenant: str | None = None,
        by: str | None = None,
        for_operator: bool = True,
    ) -> dict[str, Totals]:
        """Totals of the last ``seconds`` (in whole minutes; None: all that is kept).

        ``by`` is a field of Origin, whose values are the result's keys; without it the one key is
        "". Only the operator's totals say ``isolated``.
        """
        requests: Counter[str] = Counter()
        tokens: dict[str, Counter[Cause]] = {}
        oldest_s = 0.0 if seconds is None else self._clock() - seconds - 60
        for minute in self._minutes:
            if minute.start_s < oldest_s:
                continue
            counts = minute.tokens if for_operator else minute.own_tokens
            for origin, count in minute.requests.items():
                if tenant is None or origin.tenant == tenant:
                    requests[getattr(origin, by) if by else ""] += count
            for (origin, cause), count in counts.items():
                if tenant is None or origin.tenant == tenant:
                    key = getattr(origin, by) if by else ""
                    tokens.setdefault(key, Counter())[cause] += count
        return {
            key: Totals(count, {cause: tokens[key][cause] for cause in Cause if tokens[key][cause]})
            for key, count in requests.items()
        }

    def history(self, minutes: int, tenant: str | None = None) -> Sequence[tuple[float, Totals]]:
        """Totals a minute, oldest first, of the last ``minutes`` that had requests."""
        result = []
        for minute in list(self._minutes)[-minutes:]:
            counts = minute.tokens if tenant is None else minute.own_tokens
            by_cause: Counter[Cause] = Counter()
            for (origin, cause), count in counts.items():
                if tenant is None or origin.tenant == tenant:
                    by_cause[cause] += count
            requests = sum(
                count
                for origin, count in minute.requests.items()
                if tenant is None or origin.tenant == tenant
            )
            totals = {cause: by_cause[cause] for cause in Cause if by_cause[cause]}
            result.append((minute.start_s, Totals(requests, totals)))
        return result

    def _this_minute(self) -> _Minute:
        start_s = self._clock() // 60 * 60
        if not self._minutes or self._minutes[-1].start_s != start_s:
            self._minutes.append(_Minute(start_s, Counter(), Counter(), Counter()))
        return self._minutes[-1]
