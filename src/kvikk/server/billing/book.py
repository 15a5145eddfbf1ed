"""The bill: tokens and money by day, tenant, key and model.

Every request that was admitted is in it once, from its end on. What is kept is bounded: days older
than the last ``KEPT_DAYS`` become one.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from kvikk.engine.requests import Origin
from kvikk.pricing.decision import Decision
from kvikk.pricing.prices import Bill, Cost

KEPT_DAYS = 400
EARLIER = "earlier"

NOTHING = Bill(Cost(), Cost())


class Row(NamedTuple):
    """What totals can be told apart by. A day is a date of UTC, or ``EARLIER``."""

    day: str
    tenant: str
    key: str
    model: str


@dataclass(slots=True)
class Totals:
    """Requests, their tokens, and what they cost.

    ``bill`` is in US dollars by the rules' prices, ``relative`` in units of their input price.
    ``unanswered`` requests ended before their answer began: a provider bills nothing for them.
    ``machine_s`` is the time that the machine computed for all of them.
    """

    requests: int = 0
    prompt_tokens: int = 0
    read_tokens: int = 0
    written_tokens: int = 0
    plain_tokens: int = 0
    completion_tokens: int = 0
    written_by_lifetime: Counter[str] = field(default_factory=Counter)
    bill: Bill = NOTHING
    relative: Bill = NOTHING
    unanswered_requests: int = 0
    unanswered_prompt_tokens: int = 0
    machine_s: float = 0.0

    def add_answered(
        self, decision: Decision, completion_tokens: int, bill: Bill, relative: Bill
    ) -> None:
        """One more request with an answer."""
        self.requests += 1
        self.prompt_tokens += decision.num_tokens
        self.read_tokens += decision.read_tokens
        self.written_tokens += decision.written_tokens
        self.plain_tokens += decision.plain_tokens
        self.completion_tokens += completion_tokens
        self.written_by_lifetime.update(decision.written_by_lifetime)
        self.bill += bill
        self.relative += relative

    def add(self, other: "Totals") -> None:
        """All that another has, too."""
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.read_tokens += other.read_tokens
        self.written_tokens += other.written_tokens
        self.plain_tokens += other.plain_tokens
        self.completion_tokens += other.completion_tokens
        self.written_by_lifetime.update(other.written_by_lifetime)
        self.bill += other.bill
        self.relative += other.relative
        self.unanswered_requests += other.unanswered_requests
        self.unanswered_prompt_tokens += other.unanswered_prompt_tokens
        self.machine_s += other.machine_s


class Book:
    """Totals by row; belongs to one thread. ``kept_days`` bounds how far back days are told."""

    def __init__(self, kept_days: int = KEPT_DAYS) -> None:
        self._kept_days = kept_days
        self._rows: dict[Row, Totals] = {}

    def of(self, origin: Origin, at_s: float) -> Totals:
        """The totals that a request of then belongs to, to be added to."""
        day = datetime.fromtimestamp(at_s, UTC).date().isoformat()
        row = Row(day, origin.tenant, origin.key, origin.model)
        if row not in self._rows:
            self._fold(day)
            self._rows[row] = Totals()
        return self._rows[row]

    def rows(self, wanted: Callable[[Row], bool] = lambda row: True) -> dict[Row, Totals]:
        """The rows that are wanted."""
        return {row: totals for row, totals in self._rows.items() if wanted(row)}

    def _fold(self, new_day: str) -> None:
        """Make room for a day: the oldest one becomes part of all that was earlier."""
        days = {row.day for row in self._rows if row.day != EARLIER}
        if new_day in days or len(days) < self._kept_days:
            return
        oldest = min(days)
        for row in [row for row in self._rows if row.day == oldest]:
            totals = self._rows.pop(row)
            self._rows.setdefault(row._replace(day=EARLIER), Totals()).add(totals)


def grouped(rows: dict[Row, Totals], by: Iterable[str]) -> dict[tuple[str, ...], Totals]:
    """Totals by the named fields of a row, in their order."""
    names = tuple(by)
    groups: dict[tuple[str, ...], Totals] = {}
    for row, totals in sorted(rows.items()):
        key = tuple(getattr(row, name) for name in names)
        groups.setdefault(key, Totals()).add(totals)
    return groups
