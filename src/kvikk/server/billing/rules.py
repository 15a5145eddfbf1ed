"""The rule set that a server was started with, and the files that add to those that are known."""

from dataclasses import dataclass
from datetime import date
from pathlib import Path

from kvikk.errors import ModelError
from kvikk.pricing.caching import Caching
from kvikk.pricing.litellm import read_price_map
from kvikk.pricing.prices import PriceList
from kvikk.pricing.registry import find, known_names
from kvikk.pricing.rows import Rows, read_rows
from kvikk.pricing.unknown import Unknown


@dataclass(frozen=True)
class ServedRules:
    """Rules that a server reports usage by; ``notes`` are what is only taken to be so."""

    name: str
    caching: Caching
    prices: PriceList
    sources: tuple[str, ...]
    notes: tuple[str, ...]

    def told(self) -> list[str]:
        """Lines that say at the start what is reported, and what is only taken to be so."""
        return [
            f"usage is reported as by {self.name}",
            *(f"  taken: {note}" for note in self.notes),
        ]


def load_rules(
    name: str | None, rules_file: Path | None, price_map: Path | None, on: date
) -> ServedRules | None:
    """The rules called ``name``, as of a day; None without a name.

    Raises ModelError for a file that is not usable, for a name without rules, and for files without
    a name.
    """
    own = Rows() if price_map is None else read_price_map(price_map)
    if rules_file is not None:
        own = own + read_rows(rules_file)
    if name is None:
        if rules_file is not None or price_map is not None:
            raise ModelError("rules and prices are for a rule set; choose one with --rules")
        return None
    found = find(name, own=own, on=on)
    caching = found if isinstance(found, Unknown) else found.caching
    if isinstance(found, Unknown) or isinstance(caching, Unknown):
        assert isinstance(caching, Unknown)
        raise ModelError(f"{caching.why}; {_known(name, own)}")
    return ServedRules(found.name, caching, found.prices, found.sources, found.notes)


def _known(name: str, own: Rows) -> str:
    """What there is in place of a name: of its provider, or which providers there are."""
    names = known_names(own)
    provider = name.partition(":")[0]
    of_provider = [one for one in names if one.startswith(f"{provider}:")]
    if of_provider:
        return f"known are {', '.join(of_provider)}"
    return f"known providers are {', '.join(dict.fromkeys(one.partition(':')[0] for one in names))}"
