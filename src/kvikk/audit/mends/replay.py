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
from kvikk.audit.mends.rewrite import Mend, mended, mended_sibling
from kvikk.audit.usage import ReportedUsage

_MOST_REMEMBERED = 512


@dataclass(frozen=True, slots=True)
class Saving:
    """What a log's input costs by the rules without and with a mend; None without a price.

    ``mended`` requests could be changed, ``left`` could not.
    """

    cause: str
    mended: int
    left: int
    cost: float | None
    cost_with: float | None
    in_input_tokens: float | None
    in_input_tokens_with: float | None

    def to_json(self) -> dict[str, Any]:
        """Itself, as ``kvikk audit --json`` prints it."""
        return {
            "mended": self.mended,
            "left": self.left,
            "cost": self.cost,
            "cost_with": self.cost_with,
            "cost_in_input_tokens": self.in_input_tokens,
            "cost_in_input_tokens_with": self.in_input_tokens_with,
        }


class Replay:
    """Changes the exchanges of a log as the mends for one class ask."""

    def __init__(self, cause: str, findings: Iterable[dict[str, Any]]) -> None:
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
        if own is not None:
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


def costs(audits: Iterable[Audited]) -> tuple[float | None, float | None]:
    """The sums of what inputs cost: in US dollars, and in input tokens' worth."""
    dollars: float | None = 0.0
    relative: float | None = 0.0
    for audited in audits:
        account = audited.account
        if not account.parts:
            continue
        dollars = _plus(dollars, account.cost)
        relative = _plus(relative, account.cost_in_input_tokens)
    return dollars, relative


def savings(
    read: Callable[[], Iterable[Exchange]],
    causes: Iterable[str],
    findings: Callable[[], Iterable[dict[str, Any]]],
) -> Iterator[Saving]:
    """For each cause what its mend saves. ``read`` begins the log again, ``findings`` its list."""
    without = costs(played(read()))
    for cause in causes:
        replay = Replay(cause, findings())
        dollars, relative = costs(played(read(), replay.changed))
        if replay.mended:
            yield Saving(
                cause, replay.mended, replay.left, without[0], dollars, without[1], relative
            )


def _plus(sum_of: float | None, cost: float | None) -> float | None:
    return None if sum_of is None or cost is None else sum_of + cost
