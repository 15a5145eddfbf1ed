"""One run of an experiment: its nonces, what it has asked, and what it keeps for another time.

An experiment is a number of arms, each a few requests that may warm each other and nobody else:
every arm begins its texts with a nonce of its own. An arm is kept when it is whole, so that a run
which was cut short goes on at the arm it was in.
"""

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path

from kvikk.errors import RequestError
from kvikk.pricing.unknown import Unknown
from kvikk.probe.api import Api, Counts, Interrupted, Prompt
from kvikk.probe.money import Tariff
from kvikk.text.words import WORDS

NOT_TOLD = (
    "no answer tells how many tokens were read from a cache: whether anything hit is unknown, "
    "which is not the same as never"
)
_LINE_BEGINS = b'{"setup": "'
# As the fixed share of every prompt: a template's own words, found by two short prompts.
_WARM_WORDS = "Say in one word which day comes after Monday, and nothing else at all."


@dataclass(frozen=True)
class Exchange:
    """One request of an arm, counted from 1, and what came back. ``label`` says what it sent."""

    arm: str
    number: int
    label: str
    counts: Counts

    @property
    def is_hit(self) -> bool:
        """Whether most of the prompt was read from the cache."""
        return 2 * (self.counts.read_tokens or 0) >= self.counts.prompt_tokens


def hits(exchanges: Sequence[Exchange]) -> int | None:
    """Of the requests that could have read what the first one wrote; None if nothing is told."""
    if all(exchange.counts.read_tokens is None for exchange in exchanges):
        return None
    return sum(exchange.is_hit for exchange in exchanges[1:])


Ask = Callable[[Prompt, str], Exchange]


class Run:
    """Asks, counts and remembers.

    ``nonces`` False sends none, which contaminates: for those who want to see that. ``max_cost`` is
    in dollars. ``record`` is a file of arms that are done; ``setup`` is what must be equal for them
    to count.
    """

    def __init__(
        self,
        api: Api,
        tariff: Tariff,
        *,
        nonces: bool = True,
        max_cost: Decimal | None = None,
        record: Path | None = None,
        setup: str = "",
        on_exchange: Callable[[Exchange], None] = lambda exchange: None,
    ) -> None:
        self.api = api
        self.tariff = tariff
        self.exchanges: list[Exchange] = []
        self._nonces = nonces
        self._max_cost = max_cost
        self._record = record
        self._setup = f"{api.base_url} {api.model} {api.style} {setup}"
        self._on_exchange = on_exchange
        self._done = dict(_read_record(record, self._setup)) if record is not None else {}
        self._torn_bytes = _torn_bytes(record) if record is not None else 0

    def arm(self, name: str, ask_all: Callable[[str, Ask], None]) -> list[Exchange]:
        """The exchanges of one arm: as they were recorded, or asked now.

        ``ask_all`` is given the arm's nonce and a way to ask. Raises as ``Api.ask`` does.
        """
        if name in self._done:
            self.exchanges += self._done[name]
            return self._done[name]
        exchanges: list[Exchange] = []

        def ask(prompt: Prompt, label: str) -> Exchange:
            exchanges.append(self.one(name, prompt, label, len(exchanges) + 1))
            return exchanges[-1]

        ask_all(self.nonce(), ask)
        self._keep(name, exchanges)
        return exchanges

    @property
    def tells_reads(self) -> bool:
        """Whether any answer told what it read: some APIs leave zeros out, some tell nothing."""
        return any(exchange.counts.read_tokens is not None for exchange in self.exchanges)

    def nonce(self) -> str:
        """One that no prompt had before; none where none are wanted.

        62 bits, and always as many tokens: common words, one each, behind the same character.
        """
        return _nonce() if self._nonces else ""

    def one(self, arm: str, prompt: Prompt, label: str, number: int = 1) -> Exchange:
        """Ask once, count it and tell it. Raises as ``Api.ask`` does, Interrupted for money too."""
        self._stay_within_cost()
        exchange = Exchange(arm, number, label, self.api.ask(prompt))
        self.exchanges.append(exchange)
        self._on_exchange(exchange)
        return exchange

    def shared_tokens(self) -> int:
        """Tokens that any two prompts share here, by the words of the API's own template."""

        def ask_all(nonce: str, ask: Ask) -> None:
            for turn in ("first", "second"):
                # Different from the first word on, whether or not nonces are wanted.
                text = f"{_nonce()} {_WARM_WORDS}"
                ask(Prompt(user=(text,)), f"{turn} short prompt, user alone")
                ask(Prompt(user=(text,), system=(text,)), f"{turn} short prompt, system and user")

        exchanges = self.arm("template", ask_all)
        return max(exchange.counts.read_tokens or 0 for exchange in exchanges)

    def _stay_within_cost(self) -> None:
        spent = self.tariff.spent(exchange.counts for exchange in self.exchanges)
        if self._max_cost is None:
            return
        if isinstance(spent, Unknown):
            raise Interrupted(f"--max-cost cannot be kept: {spent.why}")
        if spent >= self._max_cost:
            raise Interrupted(f"${spent:.4f} are spent, and --max-cost is ${self._max_cost}")

    def _keep(self, name: str, exchanges: list[Exchange]) -> None:
        if self._record is None:
            return
        line = {
            "setup": self._setup,
            "arm": name,
            "exchanges": [asdict(exchange) for exchange in exchanges],
        }
        try:
            with self._record.open("ab") as file:
                file.truncate(file.tell() - self._torn_bytes)
                self._torn_bytes = 0
                file.write(json.dumps(line).encode() + b"\n")
        except OSError as error:
            raise RequestError(f"--record {self._record}: {error.strerror or error}") from None


def _nonce() -> str:
    words = (secrets.choice(WORDS) for _ in range(8))
    return f"[ {' '.join(words)} ]"


def contamination(exchanges: list[Exchange], shared_tokens: int) -> str | None:
    """A line about an arm whose first request hit what it cannot have written; else None."""
    first = exchanges[0]
    read = first.counts.read_tokens or 0
    if read <= shared_tokens:
        return None
    return (
        f"arm {first.arm} is contaminated: its first request read {read:,} tokens that another "
        "arm or an earlier run wrote; its hits are not its own"
    )


def _torn_bytes(path: Path) -> int:
    """How long the last line is if it was cut short while it was written: an arm not whole."""
    last = path.read_bytes().rpartition(b"\n")[2] if path.exists() else b""
    return len(last) if last.startswith(_LINE_BEGINS) else 0


def _read_record(path: Path, setup: str) -> Iterator[tuple[str, list[Exchange]]]:
    """The whole arms of a record that were asked with the same set-up."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"--record {path}: cannot be read: {error}") from None
    if _torn_bytes(path):
        lines.pop()
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
            if value["setup"] != setup:
                continue
            exchanges = [
                Exchange(
                    **{name: item for name, item in exchange.items() if name != "counts"},
                    counts=Counts(**exchange["counts"]),
                )
                for exchange in value["exchanges"]
            ]
        except (ValueError, LookupError, TypeError, AttributeError):
            raise RequestError(
                f"--record {path}: line {number} is none of a probe's; choose another file"
            ) from None
        yield value["arm"], exchanges
