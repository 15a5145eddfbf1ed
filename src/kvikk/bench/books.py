"""What a run's prompts came to in the books of the server, where it keeps any."""

from dataclasses import asdict, dataclass
from typing import Any

from kvikk.bench.target import Target, fetch_object
from kvikk.cache.ledger.records import Cause, Rates, rates
from kvikk.errors import ModelError

# The widest window there is, so that no minute of the run falls out between two readings.
_PATH = "/v1/kvikk/ledger?window=86400"


@dataclass(frozen=True)
class RunBooks:
    """The run's prompt tokens by cause: what was reused, and why the rest was not."""

    by_cause: dict[Cause, int]

    @property
    def rates(self) -> Rates:
        """What was reused, beside what the operator and the author could have had reused."""
        return rates(self.by_cause)

    def to_json(self) -> dict[str, Any]:
        """Tokens by cause, and the three rates."""
        return {
            "by_cause": {cause.value: tokens for cause, tokens in self.by_cause.items()},
            "rates": asdict(self.rates),
        }


async def read_totals(target: Target) -> dict[Cause, int] | None:
    """Prompt tokens by cause up to now; None from a server that keeps no such books."""
    try:
        totals = await fetch_object(target, _PATH)
    except ModelError:  # gone by now: the run's own figures stand without
        return None
    match totals:
        case {"by_cause": dict(by_cause)}:
            causes = {cause.value: cause for cause in Cause}
            return {
                causes[name]: tokens
                for name, tokens in by_cause.items()
                if name in causes and isinstance(tokens, int)
            }
    return None


def between(before: dict[Cause, int] | None, after: dict[Cause, int] | None) -> RunBooks | None:
    """What the books grew by; anyone else's requests of the same while are in it."""
    if before is None or after is None:
        return None
    grown = {cause: tokens - before.get(cause, 0) for cause, tokens in after.items()}
    return RunBooks({cause: tokens for cause, tokens in grown.items() if tokens > 0})
