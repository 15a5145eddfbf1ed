"""The ingress's side of the ledger: which attempts there are, and what became of their prompts.

An attempt's way, whatever order things come in:

    open ──► ended by the ingress ──┬─► booked, once its record is there (before or after its end)
                                    └─► lost, if its replica has gone or knows nothing of it
                                          └─► booked after all, once, if the record comes late

What makes a record count once is its attempt, which leaves the books' memory with it; numbers only
tell what is missing. Nothing here sends, waits or looks at a clock.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from secrets import token_hex

from kvikk.fleet.ledger.records import (
    LOST,
    Ask,
    Batch,
    Elsewhere,
    FleetTotals,
    Receipt,
    Settled,
    scattered,
    summed,
)

_MOST_EPOCHS = 1024
_MOST_BEYOND = 1024
_MOST_OWED = 1 << 16
_MOST_LOST = 1 << 16
_MOST_REPLICAS = 256
_OWED_PER_ASK = 1024


@dataclass(slots=True, eq=False)
class _Attempt:
    id: str
    replica: str
    prompt_tokens: int
    elsewhere: Elsewhere | None
    record: Settled | None = None
    superseded: bool = False


@dataclass(slots=True)
class _Received:
    """Of one epoch: all numbers up to ``through`` are here, and some ``beyond``, up to ``last``."""

    through: int = 0
    last: int = 0
    beyond: set[int] = field(default_factory=set)

    def gone(self, through: int) -> None:
        """Nothing up to ``through`` is to come any more."""
        self.through = max(self.through, through)
        self.last = max(self.last, through)
        self.beyond = {number for number in self.beyond if number > through}
        self._advance()

    def take(self, number: int) -> bool:
        """One more is here; whether it is beyond a gap."""
        is_beyond_gap = number > self.last + 1
        self.last = max(self.last, number)
        # What is not noted comes again, and counts for nothing.
        if number > self.through and len(self.beyond) < _MOST_BEYOND:
            self.beyond.add(number)
        self._advance()
        return is_beyond_gap

    def _advance(self) -> None:
        while self.through + 1 in self.beyond:
            self.through += 1
            self.beyond.discard(self.through)


class FleetLedger:
    """All attempts of one ingress. Called from one thread; its memory is bounded."""

    def __init__(self, ingress: str = "") -> None:
        """``ingress`` is a name for people; another ingress of that name has other attempts."""
        self.ingress = f"{ingress or 'ingress'}-{token_hex(6)}"
        self._minted = 0
        self._running: dict[str, _Attempt] = {}
        self._owed: OrderedDict[str, _Attempt] = OrderedDict()
        self._lost: OrderedDict[str, _Attempt] = OrderedDict()
        self._received: OrderedDict[str, _Received] = OrderedDict()
        self._attempts: Counter[bool] = Counter()
        self._tokens: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
        self._by_replica: OrderedDict[str, Counter[str]] = OrderedDict()
        self._late = self._repeated = self._gaps = self._corrected_tokens = 0

    # What the ingress does.

    def mint(self) -> str:
        """A new attempt's id: its own for ever, and it says whose attempt it is."""
        self._minted += 1
        return f"{self.ingress}/{self._minted}"

    def open(
        self,
        attempt: str,
        replica: str,
        prompt_tokens: int,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """An attempt is about to be sent to ``replica``, once; it must be ended, in ``finally``.

        ``prompt_tokens`` are what is booked if nobody ever tells: the replica's word is better.
        """
        assert prompt_tokens > 0, "a prompt has at least one token"
        assert attempt not in self._running, f"{attempt} is open already"
        self._running[attempt] = _Attempt(attempt, replica, prompt_tokens, elsewhere)

    def ended(self, attempt: str, *, superseded: bool = False) -> None:
        """The ingress has done with an attempt, well or not; its replica still owes the record.

        ``superseded`` says that another attempt will be made for the same request, and counts.
        """
        one = self._running.pop(attempt)
        one.superseded = superseded
        if one.record is not None:
            self._book(one, one.record)
            return
        self._owed[attempt] = one
        if len(self._owed) > _MOST_OWED:
            self._lose(next(iter(self._owed)))

    def not_sent(self, attempt: str, cause: str, *, superseded: bool = False) -> None:
        """An attempt was never sent: ``left`` or ``refused``. No replica will tell of it."""
        one = self._running.pop(attempt)
        one.superseded = superseded
        self._book(one, Settled.whole(attempt, one.prompt_tokens, cause))

    def turn_away(self, prompt_tokens: int, cause: str) -> None:
        """A request ends without a last attempt of its own: nobody could be asked."""
        attempt = self.mint()
        self.open(attempt, "", prompt_tokens)
        self.not_sent(attempt, cause)

    # What replicas tell.

    def ask(self) -> Ask:
        """What to tell all replicas, and ask of them; each takes from it what is its own."""
        receipts = {
            epoch: Receipt(one.through, tuple(sorted(one.beyond)))
            for epoch, one in self._received.items()
        }
        owed: dict[str, list[str]] = {}
        for one in self._owed.values():
            names = owed.setdefault(one.replica, [])
            if len(names) < _OWED_PER_ASK:
                names.append(one.id)
        return Ask(self.ingress, receipts, {name: tuple(ids) for name, ids in owed.items()})

    def receive(self, batch: Batch) -> None:
        """Take in what a replica says. Any batch may come again, late, or not at all."""
        received = self._received.pop(batch.epoch, None) or _Received()
        self._received[batch.epoch] = received
        if len(self._received) > _MOST_EPOCHS:
            self._received.popitem(last=False)
        received.gone(batch.gone_through)
        for number, record in batch.records:
            self._gaps += received.take(number)
            self._settle(record)
        for attempt in batch.unknown:
            if attempt in self._owed:
                self._lose(attempt)

    def fleet(self, replicas: Collection[str]) -> None:
        """These replicas there are. What others owe is lost, unless it comes late."""
        gone = [name for name, one in self._owed.items() if one.replica not in replicas]
        for name in gone:
            self._lose(name)

    # What is known.

    def totals(self) -> FleetTotals:
        """Since the start. Counts and ``open_tokens`` together are all that was ever opened."""
        still_open = [*self._running.values(), *self._owed.values()]
        return FleetTotals(
            self._attempts[False],
            summed(self._tokens[False]),
            self._attempts[True],
            summed(self._tokens[True]),
            len(still_open),
            sum(one.prompt_tokens for one in still_open),
            self._late,
            self._repeated,
            self._corrected_tokens,
            self._gaps,
        )

    def by_replica(self) -> dict[str, dict[str, int]]:
        """Tokens by cause of each replica's attempts, superseded ones too.

        "" is of none, and of those that have been silent for longest when there are very many.
        """
        return {name: summed(tokens) for name, tokens in self._by_replica.items()}

    def owed(self) -> int:
        """Attempts that have ended here and that no replica has told of yet."""
        return len(self._owed)

    def _settle(self, record: Settled) -> None:
        name = record.attempt
        one = self._running.get(name) or self._owed.get(name) or self._lost.get(name)
        if one is None or one.record is not None:
            self._repeated += 1
        elif name in self._running:
            one.record = record
        elif name in self._owed:
            del self._owed[name]
            self._book(one, record)
        else:
            del self._lost[name]
            self._late += 1
            self._add(one, {LOST: -one.prompt_tokens})
            self._attempts[one.superseded] -= 1
            self._book(one, record)

    def _lose(self, attempt: str) -> None:
        one = self._owed.pop(attempt)
        self._book(one, Settled.whole(attempt, one.prompt_tokens, LOST))
        self._lost[attempt] = one
        if len(self._lost) > _MOST_LOST:
            self._lost.popitem(last=False)

    def _book(self, one: _Attempt, record: Settled) -> None:
        self._corrected_tokens += record.prompt_tokens - one.prompt_tokens
        self._attempts[one.superseded] += 1
        by_cause: Counter[str] = Counter()
        for span in scattered(record.spans, one.elsewhere):
            by_cause[span.cause] += span.num_tokens
        self._add(one, by_cause)

    def _add(self, one: _Attempt, by_cause: dict[str, int]) -> None:
        self._tokens[one.superseded].update(by_cause)
        tokens = self._by_replica.pop(one.replica, None) or Counter()
        tokens.update(by_cause)
        self._by_replica[one.replica] = tokens
        if len(self._by_replica) > _MOST_REPLICAS:
            silent = next(name for name in self._by_replica if name)
            self._by_replica.setdefault("", Counter()).update(self._by_replica.pop(silent))
