"""What became of the prompts of the last requests, and the totals.

The ledgers are the cache's; here they get names and times, are kept for a while, and are added up
by minute. All of it is bounded: so many requests, so many minutes.
"""

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

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
    """The last requests by id, and totals by minute, tenant, key, route and model.

    Whoever reads as a ``tenant`` is told of that tenant's requests, as if there were no other; None
    is the operator, who is told of all.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._accounts: OrderedDict[str, Account] = OrderedDict()
        self._ids: dict[int, str] = {}
        self._forks: dict[str, list[int]] = {}  # sequences of a request beside its first
        self._minutes: deque[_Minute] = deque(maxlen=KEPT_MINUTES)
        self._since_start = dict.fromkeys(Cause, 0)

    def add(
        self,
        request_id: str,
        sequence: int,
        ledger: Ledger,
        origin: Origin,
        parts: tuple[Part, ...] = (),
    ) -> Account:
        """Keep one more; of two with one id the last."""
        account = Account(request_id, sequence, origin, self._clock(), ledger, parts)
        before = self._accounts.pop(request_id, None)
        if before is None and len(self._accounts) == KEPT_REQUESTS:
            _, before = self._accounts.popitem(last=False)
        if before is not None:
            for number in (before.sequence, *self._forks.pop(before.request_id, ())):
                del self._ids[number]
        self._accounts[request_id] = account
        self._ids[sequence] = request_id
        minute = self._this_minute()
        minute.requests[origin] += 1
        for counts, own in ((minute.tokens, False), (minute.own_tokens, True)):
            for cause, tokens in ledger.totals(own).items():
                counts[origin, cause] += tokens
        for cause, tokens in ledger.totals().items():
            self._since_start[cause] += tokens
        return account

    def fork(self, request_id: str, sequence: int) -> None:
        """One more sequence of a request; its prompt is accounted for."""
        if request_id in self._accounts:
            self._ids[sequence] = request_id
            self._forks.setdefault(request_id, []).append(sequence)

    def find(self, request_id: str, tenant: str | None = None) -> Account | None:
        """The account of a request, while it is kept and if this reader may see it."""
        account = self._accounts.get(request_id)
        return account if account is not None and _may_see(tenant, account.origin) else None

    def name(self, sequence: int | None, tenant: str | None = None) -> str | None:
        """The request id of a sequence, while it is kept and if this reader may see it."""
        request_id = None if sequence is None else self._ids.get(sequence)
        found = None if request_id is None else self.find(request_id, tenant)
        return None if found is None else found.request_id

    def latest(self, count: int, tenant: str | None = None) -> list[Account]:
        """The last requests, newest first."""
        found = (
            account
            for account in reversed(self._accounts.values())
            if _may_see(tenant, account.origin)
        )
        return list(islice(found, count))

    def since_start(self) -> dict[Cause, int]:
        """Tokens by cause since the start, all causes; may be asked for in any thread."""
        return self._since_start.copy()

    def totals(self, seconds: float, tenant: str | None = None) -> Totals:
        """Totals of the last ``seconds``, in whole minutes."""
        return _add(self._recent(seconds), tenant).get("", Totals(0, {}))

    def totals_by(self, field: str, seconds: float, tenant: str | None = None) -> dict[str, Totals]:
        """The same by the values of a field of ``Origin``, most tokens first."""
        found = _add(self._recent(seconds), tenant, field)
        return dict(sorted(found.items(), key=lambda item: -item[1].prompt_tokens))

    def history(self, seconds: float, tenant: str | None = None) -> list[tuple[float, Totals]]:
        """Totals of each minute that had requests, with its beginning; oldest first."""
        minutes = ((minute.start_s, _add([minute], tenant)) for minute in self._recent(seconds))
        return [(start_s, totals[""]) for start_s, totals in minutes if totals]

    def _recent(self, seconds: float) -> list[_Minute]:
        """The minutes that the last ``seconds`` lie in."""
        oldest_s = self._clock() - seconds - 60
        return [minute for minute in self._minutes if minute.start_s > oldest_s]

    def _this_minute(self) -> _Minute:
        start_s = self._clock() // 60 * 60
        if not self._minutes or self._minutes[-1].start_s != start_s:
            self._minutes.append(_Minute(start_s, Counter(), Counter(), Counter()))
        return self._minutes[-1]


def _may_see(tenant: str | None, origin: Origin) -> bool:
    return tenant is None or origin.tenant == tenant


def _add(
    minutes: Iterable[_Minute], tenant: str | None, field: str | None = None
) -> dict[str, Totals]:
    """Totals by a field's values; by "" without one. What has no requests is left out."""
    requests: Counter[str] = Counter()
    tokens: dict[str, Counter[Cause]] = {}
    for minute in minutes:
        for origin, count in minute.requests.items():
            if _may_see(tenant, origin):
                requests[getattr(origin, field) if field else ""] += count
        counts = minute.tokens if tenant is None else minute.own_tokens
        for (origin, cause), count in counts.items():
            if _may_see(tenant, origin):
                key = getattr(origin, field) if field else ""
                tokens.setdefault(key, Counter())[cause] += count
    return {
        key: Totals(count, {cause: tokens[key][cause] for cause in Cause if tokens[key][cause]})
        for key, count in requests.items()
    }
