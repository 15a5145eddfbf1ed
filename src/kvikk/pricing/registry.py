"""Finds the rules and prices of a model by name: ``find("openai:gpt-5.6")``."""

from dataclasses import dataclass
from datetime import date
from functools import cache

from kvikk.pricing.caching import Caching
from kvikk.pricing.names import parse_name
from kvikk.pricing.price_lists import price_list
from kvikk.pricing.prices import PriceList
from kvikk.pricing.rows import VENDORS_OWN, CachingRow, Rows, built_in_rows, closest
from kvikk.pricing.unknown import Unknown


@dataclass(frozen=True, slots=True)
class RuleSet:
    """What is known of one model's prompt caching. ``notes`` are to be shown to whoever uses it."""

    name: str
    provider: str
    channel: str
    model: str
    caching: Caching | Unknown
    prices: PriceList
    sources: tuple[str, ...]
    notes: tuple[str, ...]


@cache
def built_in() -> Rows:
    """The rows that come with kvikk, read once."""
    return built_in_rows()


def find(name: str, *, on: date | None = None, own: Rows | None = None) -> RuleSet | Unknown:
    """The rules of ``provider:model`` as of a day (None: the latest), or why there are none.

    ``own`` rows are of a user's file: where one is about the model, it wins over those that came
    with kvikk. A cloud's or gateway's name works too: ``bedrock:…``, ``openrouter:openai/…``.
    Raises ModelError for a name that is none.
    """
    parsed = parse_name(name)
    own = own or Rows()
    caching_rows = [row for rows in (own, built_in()) for row in _caching_rows(rows, *parsed, on)]
    prices, price_scopes = price_list(name, own, built_in(), *parsed, on)
    if not caching_rows and not price_scopes:
        day = "" if on is None else f" on {on}"
        return Unknown(f"no rules of {name!r} are known{day}; a file of your own can add them")
    provider, channel, model = parsed
    scopes = [*(row.scope for row in caching_rows[:1]), *price_scopes]
    if caching_rows and caching_rows[0].scope.channel != channel:
        notes = [f"{channel} is taken to cache as {provider}'s own API does"]
    else:
        notes = []
    notes += [scope.note for scope in scopes if scope.note]
    return RuleSet(
        name,
        provider,
        channel,
        model,
        caching_rows[0].caching
        if caching_rows
        else Unknown(f"how {name!r} caches prompts is not known"),
        prices,
        tuple(dict.fromkeys(scope.source for scope in scopes)),
        tuple(dict.fromkeys(notes)),
    )


def known_names(own: Rows | None = None) -> tuple[str, ...]:
    """The ``provider:pattern`` of all rows that say how a model caches."""
    rows = (*(own or Rows()).caching, *built_in().caching)
    names = (f"{row.scope.provider}:{model}" for row in rows for model in row.scope.models)
    return tuple(dict.fromkeys(names))


def _caching_rows(
    rows: Rows, provider: str, channel: str, model: str, on: date | None
) -> list[CachingRow]:
    """The closest first; those of the vendor's own API after those of the channel."""
    channels = dict.fromkeys((channel, VENDORS_OWN))
    return [
        rows.caching[index]
        for name in channels
        for index in closest(
            ((index, row.scope) for index, row in enumerate(rows.caching)),
            provider,
            name,
            model,
            on,
        )
    ]
