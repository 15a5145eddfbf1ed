"""Dated rows of rules and prices, and the file they are read from: ours, or a user's in its form.

A TOML or JSON file; every mistake in it is told with its place and what was expected.
"""

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from typing import Any

from kvikk.errors import ModelError
from kvikk.pricing.caching import Breakpoints, Caching, Lifetime, MessageEnds, Scheme, Steps, Units
from kvikk.pricing.fields import Fields

VENDORS_OWN = "api"
"""The channel of rows for a vendor's own API; others are a cloud's or a gateway's."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a row is about: which models of which provider, by which channel, since when."""

    provider: str
    channel: str
    models: tuple[str, ...]
    valid_from: date
    source: str
    note: str = ""

    def match(self, provider: str, channel: str, model: str, on: date | None) -> int | None:
        """How closely the model is meant: characters of the longest pattern; None if it is not."""
        if (self.provider, self.channel) != (provider, channel):
            return None
        if on is not None and on < self.valid_from:
            return None
        lengths = [len(pattern) for pattern in self.models if fnmatchcase(model, pattern)]
        return max(lengths, default=None)


@dataclass(frozen=True, slots=True)
class CachingRow:
    """How these models' cache works."""

    scope: Scope
    caching: Caching


@dataclass(frozen=True, slots=True)
class PriceFields:
    """Prices as a row has them, of one token; what it is silent about is None.

    In US dollars, and ``…_of_input`` as shares of the input price.
    """

    input: Decimal | None = None
    read: Decimal | None = None
    write: Mapping[str, Decimal] | None = None
    output: Decimal | None = None
    read_of_input: Decimal | None = None
    write_of_input: Mapping[str, Decimal] | None = None


@dataclass(frozen=True, slots=True)
class PriceRow:
    """What these models take. ``tiers`` replace all prices for prompts above so many tokens."""

    scope: Scope
    prices: PriceFields
    tiers: tuple[tuple[int, PriceFields], ...] = ()


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows, the later ones in force where two are equally close and equally old."""

    caching: tuple[CachingRow, ...] = ()
    prices: tuple[PriceRow, ...] = ()

    def __add__(self, other: "Rows") -> "Rows":
        return Rows(self.caching + other.caching, self.prices + other.prices)


def read_rows(path: Path) -> Rows:
    """The rows of a user's file, TOML or (by its name) JSON. Raises ModelError for a bad one."""
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ModelError(f"{path}: not UTF-8 text; expected rules in TOML or JSON") from None
    return parse_rows(text, str(path), is_json=path.suffix == ".json", known=_built_in_schemes())


def built_in_rows() -> Rows:
    """The rows that come with kvikk."""
    return parse_rows(_built_in_text(), "rules.toml")


def parse_rows(
    text: str,
    origin: str,
    *,
    is_json: bool = False,
    known: Mapping[str, Mapping[str, Any]] | None = None,
) -> Rows:
    """The rows of a document, which errors call ``origin``; it may use ``known`` schemes."""
    top = Fields(_parse(text, origin, is_json), origin)
    own = top.take("schemes", {}, Fields.table)
    schemes = {**(known or {}), **own}
    caching = [_caching_row(row, schemes) for row in top.rows("caching")]
    prices = [_price_row(row) for row in top.rows("price")]
    top.finish()
    return Rows(tuple(caching), tuple(prices))


def _parse(text: str, origin: str, is_json: bool) -> Any:
    try:
        if is_json:
            return json.loads(text, parse_float=Decimal)
        return tomllib.loads(text, parse_float=Decimal)
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, RecursionError) as error:
        kind = "JSON" if is_json else "TOML"
        raise ModelError(f"{origin}: not {kind}: {str(error) or 'nested too deeply'}") from None


def _built_in_text() -> str:
    return files("kvikk.pricing").joinpath("rules.toml").read_text(encoding="utf-8")


def _built_in_schemes() -> Mapping[str, Mapping[str, Any]]:
    schemes: Mapping[str, Mapping[str, Any]] = tomllib.loads(_built_in_text(), parse_float=Decimal)[
        "schemes"
    ]
    return schemes


def _scope(row: Fields) -> Scope:
    return Scope(
        row.take("provider", None, Fields.text),
        row.take("channel", VENDORS_OWN, Fields.text),
        row.take("models", None, Fields.texts),
        row.take("valid_from", None, Fields.day),
        row.take("source", None, Fields.text),
        row.take("note", "", Fields.text),
    )


def _caching_row(row: Fields, schemes: Mapping[str, Any]) -> CachingRow:
    scope = _scope(row)
    name = row.take("scheme", "", Fields.text)
    if name and name not in schemes:
        row.fail(f"scheme: no scheme {name!r}; known are {', '.join(sorted(schemes))}")
    merged = row.on_top_of(schemes[name] if name else {})
    caching = _caching(merged)
    merged.finish()
    return CachingRow(scope, caching)


def _caching(fields: Fields) -> Caching:
    lifetimes = fields.take("lifetimes", None, Fields.table)
    if not lifetimes:
        fields.fail("lifetimes: expected at least one, such as { default = { idle_s = 300 } }")
    parameters = fields.take("parameters", {}, Fields.table)
    return Caching(
        _scheme(fields),
        fields.take("minimum_tokens", None, Fields.count),
        {name: _lifetime(fields.inner(f"lifetimes.{name}", lifetimes[name])) for name in lifetimes},
        _parameters(fields.inner("parameters", parameters)),
        fields.take("cache_key_separates", False, Fields.flag),
        fields.take("bills_writes", False, Fields.flag),
    )


def _lifetime(fields: Fields) -> Lifetime:
    most_s = fields.take("at_most_s", Decimal(0), Fields.number)
    lifetime = Lifetime(
        float(fields.take("idle_s", None, Fields.number)), float(most_s) if most_s else None
    )
    fields.finish()
    return lifetime


def _parameters(fields: Fields) -> dict[Any, tuple[str, ...]]:
    sections = ("tools", "system", "messages")
    found = {section: fields.take(section, (), Fields.texts) for section in sections}
    fields.finish()
    return found


_SCHEMES: Mapping[str, Callable[[Fields], Scheme]] = {
    "steps": lambda fields: Steps(
        fields.take("step_tokens", None, Fields.positive),
        fields.take("hidden_tokens", 0, Fields.count),
    ),
    "message_ends": lambda fields: MessageEnds(
        fields.take("write_slots", 4, Fields.positive),
        fields.take("matched_boundaries", 80, Fields.positive),
    ),
    "breakpoints": lambda fields: Breakpoints(
        fields.take("most_markers", 4, Fields.positive),
        fields.take("lookback_positions", 20, Fields.positive),
    ),
    "units": lambda fields: Units(fields.take("unit_tokens", None, Fields.positive)),
}


def _scheme(fields: Fields) -> Scheme:
    name = fields.take("boundaries", None, Fields.text)
    if name not in _SCHEMES:
        fields.fail(f"boundaries: expected one of {', '.join(_SCHEMES)}, not {name!r}")
    return _SCHEMES[name](fields)


def _price_row(row: Fields) -> PriceRow:
    scope = _scope(row)
    tiers = [(tier.take("tokens", None, Fields.count), _prices(tier)) for tier in row.rows("above")]
    limit = row.take("reprices_above_tokens", 0, Fields.count)
    if limit:  # something else is taken above it, and nobody here knows what
        tiers.append((limit, PriceFields()))
    return PriceRow(scope, _prices(row), tuple(sorted(tiers, key=lambda tier: tier[0])))


def _prices(row: Fields) -> PriceFields:
    million = Decimal(1_000_000)

    def dollars(name: str) -> Decimal | None:
        price: Decimal | None = row.take(name, ..., Fields.number)
        return None if price is None else price / million

    write = _by_lifetime(row, "write")
    prices = PriceFields(
        dollars("input"),
        dollars("read"),
        None if write is None else {name: price / million for name, price in write.items()},
        dollars("output"),
        row.take("read_of_input", ..., Fields.number),
        _by_lifetime(row, "write_of_input"),
    )
    row.finish()
    return prices


def _by_lifetime(row: Fields, name: str) -> dict[str, Decimal] | None:
    table = row.take(name, ..., Fields.table)
    if table is None:
        return None
    inner = row.inner(name, table)
    found = {lifetime: inner.take(lifetime, None, Fields.number) for lifetime in table}
    inner.finish()
    return found


def closest(
    scopes: Iterator[tuple[int, Scope]], provider: str, channel: str, model: str, on: date | None
) -> list[int]:
    """Indices of the rows about a model, the closest first: longest pattern, latest date, last."""
    ranked = [
        (length, scope.valid_from, index)
        for index, scope in scopes
        if (length := scope.match(provider, channel, model, on)) is not None
    ]
    return [index for *_, index in sorted(ranked, reverse=True)]


def filled(prices: PriceFields, other: PriceFields) -> PriceFields:
    """``prices``, and what they are silent about from ``other``."""
    missing = {
        name: getattr(other, name)
        for name in PriceFields.__dataclass_fields__
        if getattr(prices, name) is None
    }
    return replace(prices, **missing)
