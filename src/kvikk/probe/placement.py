"""Where a fixed text must stand to be reused: four arrangements of a question and a handbook."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvikk.pricing.prices import Price
from kvikk.pricing.unknown import Unknown
from kvikk.probe.api import Prompt
from kvikk.probe.money import Estimate, estimate
from kvikk.probe.run import Ask, Exchange, Run, contamination, hits

QUESTIONS = (
    "May I return a drill that I have used twice?",
    "How long is the warranty on a hedge trimmer's battery?",
    "A customer's parcel came without its charger. Who pays for sending one?",
    "Which team decides on a refund of more than 500 euros?",
    "Can a business customer return half of an order?",
    "The serial number on the saw cannot be read any more. Is it still covered?",
    "May a repair take longer than four weeks?",
    "What do I tell someone whose rented sander broke on the first day?",
)
ARRANGEMENTS = {
    "A": "user: [question][handbook]",
    "B": "user: [handbook][question]",
    "C": "system: [handbook]  user: [question]",
    "D": "system: [question]  user: [handbook]",
}


@dataclass(frozen=True)
class Arrangement:
    """One arrangement's requests. ``bill_ratio`` is of their prompts, against no caching."""

    exchanges: Sequence[Exchange]
    bill_ratio: Price
    contaminated: str | None

    @property
    def hits(self) -> int | None:
        """Of the requests that could have read what the first one left; None if nothing is told."""
        return hits(self.exchanges)

    @property
    def of(self) -> int:
        """How many could have."""
        return len(self.exchanges) - 1

    def to_json(self) -> dict[str, Any]:
        """Hits and bill; a ratio that is not known is null, with the reason beside it."""
        unknown = self.bill_ratio if isinstance(self.bill_ratio, Unknown) else None
        return {
            "hits": self.hits,
            "of": self.of,
            "bill_ratio": None if isinstance(self.bill_ratio, Unknown) else float(self.bill_ratio),
            "bill_unknown": None if unknown is None else unknown.why,
            "contaminated": self.contaminated is not None,
        }


def placement(run: Run, handbook: str) -> Iterator[tuple[str, Arrangement]]:
    """Each arrangement as it is done: eight questions, the same handbook."""
    shared_tokens = run.shared_tokens()
    for name in ARRANGEMENTS:

        def ask_all(nonce: str, ask: Ask, name: str = name) -> None:
            for question in QUESTIONS:
                ask(_prompt(name, nonce, handbook, question), question)

        exchanges = run.arm(name, ask_all)
        yield (
            name,
            Arrangement(
                exchanges,
                run.tariff.ratio(exchange.counts for exchange in exchanges),
                contamination(exchanges, shared_tokens),
            ),
        )


def planned(handbook: str) -> Estimate:
    """What a run sends."""
    return estimate(f"{question} {handbook}" for question in QUESTIONS * len(ARRANGEMENTS))


def _prompt(name: str, nonce: str, handbook: str, question: str) -> Prompt:
    """The nonce is the first of all words, so that arms and runs share nothing."""
    first = f"{nonce} {handbook}" if name in "BC" else f"{nonce} {question}"
    second = question if name in "BC" else handbook
    if name in "AB":
        return Prompt(user=(first, second))
    return Prompt(system=(first,), user=(second,))
