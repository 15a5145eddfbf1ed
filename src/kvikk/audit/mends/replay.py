"""A log played again with one mend in it, by the rules alone: what it would have cost.

Both times the rules decide, without and with the mend, so that the difference is the mend's. Only
the requests of late are remembered; one whose sibling is forgotten stays as it was.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from kvikk.audit.auditor import Auditor
from kvikk.audit.exchange import Exchange
from kvikk.audit.findings import Audited
from kvikk.audit.mends.rewrite import Mend, mended, mended_sibling, sorted_tools
from kvikk.audit.usage import ReportedUsage

_MOST_REMEMBERED = 512


@dataclass(frozen=True, slots=True)
class Played:
    """A log by the rules alone: tokens read, and what inputs cost of models that have a price.

    In US dollars and in input tokens' worth; None if no model of the log has one.
    """

    read_tokens: int = 0
    cost: float | None = None
    in_input_tokens: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Itself, as ``kvikk audit --json`` prints it."""
        return {
            "read_tokens": self.read_tokens,
            "cost": self.cost,
            "cost_in_input_tokens": self.in_input_tokens,
        }


@dataclass(frozen=True, slots=True)
class Saving:
    """A log without and with a cause's mend: ``mended`` requests have it, ``left`` cannot."""

    cause: str
    mended: int
    left: int
    without: Played
    with_mend: Played

    def to_json(self) -> dict[str, Any]:
        """Itself, as ``kvikk audit --json`` prints it."""
        return {
            "mended": self.mended,
            "left": self.left,
            "without": self.without.to_json(),
            "with": self.with_mend.to_json(),
        }


class Replay:
    """Changes the exchanges of a log as the mends for one class ask."""

    def __init__(self, cause: str, findings: Iterable[dict[str, Any]]) -> None:
        self._cause = cause
        self._own: dict[int, tuple[Mend, int | None]] = {}
        self._of_siblings: defaultdict[int, list[Mend]] = defaultdict(list)
        self._kept: OrderedDict[int, Exchange] = OrderedDict()
        self.mended = 0
        self.left = 0
        for finding in findings:
            if finding["cause"] == cause and finding["request"] not in self._own:
                mend = Mend.of(finding)
                self._own[finding["request"]] = (mend, finding["sibling"])
                if finding["sibling"] is not None:
                    self._of_siblings[finding["sibling"]].append(mend)

    def changed(self, exchange: Exchange) -> Exchange:
        """The exchange with its mends in it."""
        result = exchange
        own = self._own.get(exchange.index)
        if self._cause == "tools.order":  # every request is sorted, not the odd ones out
            result = sorted_tools(exchange)
            self.mended += own is not None
        elif own is not None:
            mend, sibling = own
            earlier = None if sibling is None else self._kept.get(sibling)
            found = mended(exchange, earlier, mend)
            self.mended += found is not None
            self.left += found is None
            result = exchange if found is None else found
        else:
            for mend in self._of_siblings.get(exchange.index, ())[:1]:
                result = mended_sibling(result, mend) or result
        self._kept[exchange.index] = result
        if len(self._kept) > _MOST_REMEMBERED:
            self._kept.popitem(last=False)
        return result


def by_rules(exchange: Exchange) -> Exchange:
    """The exchange without what its provider says of the cache."""
    return replace(exchange, usage=ReportedUsage(input_tokens=exchange.usage.input_tokens))


def played(
    exchanges: Iterable[Exchange], change: Callable[[Exchange], Exchange] = lambda one: one
) -> Iterator[Audited]:
    """The log by the rules alone, each exchange changed before."""
    auditor = Auditor()
    for exchange in exchanges:
        yield auditor.feed(by_rules(change(exchange)))


def sums(audits: Iterable[Audited]) -> Played:
    """What a log comes to."""
    total = Played()
    for audited in audits:
        account = audited.account
        total = Played(
            total.read_tokens + account.read,
            _plus(total.cost, account.cost),
            _plus(total.in_input_tokens, account.cost_in_input_tokens),
        )
    return total


def savings(
    read: Callable[[], Iterable[Exchange]],
    causes: Iterable[str],
    findings: Callable[[], Iterable[dict[str, Any]]],
) -> Iterator[Saving]:
    """For each cause what its mend saves. ``read`` begins the log again, ``findings`` its list."""
    without = sums(played(read()))
    for cause in causes:
        replay = Replay(cause, findings())
        with_mend = sums(played(read(), replay.changed))
        if replay.mended:
            yield Saving(cause, replay.mended, replay.left, without, with_mend)


def fixed(
    read: Callable[[], Iterable[Exchange]],
    finding: dict[str, Any],
    findings: Callable[[], Iterable[dict[str, Any]]],
) -> dict[str, Any] | None:
    """The body of a finding's request with its mend in it; None where no machine can put it in."""
    replay = Replay(finding["cause"], findings())
    for exchange in read():
        changed = replay.changed(exchange)
        if exchange.index == finding["request"]:
            return None if changed is exchange else changed.body
    return None


def _plus(total: float | None, cost: float | None) -> float | None:
    return total if cost is None else (total or 0.0) + cost
