"""Reads LiteLLM's public price map, a JSON file of the user's, as price rows.

The map has an entry a model, with a price a token in US dollars, among many other things. Entries
that price something else (images, seconds) are left out; so is what an entry does not say.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import date
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from kvikk.errors import ModelError
from kvikk.pricing.rows import VENDORS_OWN, PriceFields, PriceRow, Rows, Scope

_TIERS = {"_above_200k_tokens": 200_000, "_above_272k_tokens": 272_000}
_CHANNELS = {
    "openai": ("openai", VENDORS_OWN),
    "anthropic": ("anthropic", VENDORS_OWN),
    "gemini": ("gemini", VENDORS_OWN),
    "deepseek": ("deepseek", VENDORS_OWN),
    "xai": ("xai", VENDORS_OWN),
    "azure": ("openai", "azure"),
    "bedrock": ("anthropic", "bedrock"),
    "bedrock_converse": ("anthropic", "bedrock"),
    "vertex_ai-anthropic_models": ("anthropic", "vertex"),
    "vertex_ai-language-models": ("gemini", "vertex"),
}


def read_price_map(path: Path, valid_from: date = date.min) -> Rows:
    """The price rows of a LiteLLM price map. Raises ModelError if the file is none."""
    try:
        entries = json.loads(path.read_bytes(), parse_float=Decimal)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not JSON: {error}") from None
    if not isinstance(entries, dict):
        raise ModelError(f"{path}: expected an object with an entry for each model")
    source = f"LiteLLM's price map {path.name}"
    rows = tuple(_rows(entries, valid_from, source))
    if not rows:
        raise ModelError(
            f"{path}: no entry has a litellm_provider that is known here and an "
            "input_cost_per_token; expected LiteLLM's price map"
        )
    return Rows(prices=rows)


def _rows(entries: Mapping[str, Any], valid_from: date, source: str) -> Iterator[PriceRow]:
    for name, entry in entries.items():
        if not isinstance(entry, dict):
            continue
        channel = _CHANNELS.get(str(entry.get("litellm_provider")))
        prices = _prices(entry, "")
        if channel is None or prices.input is None:
            continue
        models = (_model(name, channel[1]),)
        tiers = tuple(
            (above, tier)
            for suffix, above in _TIERS.items()
            if (tier := _prices(entry, suffix)) != PriceFields()
        )
        yield PriceRow(Scope(*channel, models, valid_from, source), prices, tiers)


def _model(name: str, channel: str) -> str:
    """A model as its provider calls it: ``gemini/gemini-2.5-flash`` has the provider in front."""
    bare = name.rpartition("/")[2]
    if channel == "bedrock":
        return bare.rpartition("anthropic.")[2].partition("-v")[0]
    return bare.replace("@", "-") if channel == "vertex" else bare


def _prices(entry: Mapping[str, Any], suffix: str) -> PriceFields:
    def price(name: str) -> Decimal | None:
        value = entry.get(name + suffix)
        if isinstance(value, bool) or not isinstance(value, int | str | Decimal):
            return None
        try:
            number = Decimal(value)
        except InvalidOperation:
            return None
        return number if number.is_finite() and number >= 0 else None

    write, long_write = (
        price("cache_creation_input_token_cost"),
        price("cache_creation_input_token_cost_above_1hr"),
    )
    writes = {"5m": write, "30m": write, "1h": long_write, "12h": long_write}
    known = {lifetime: value for lifetime, value in writes.items() if value is not None}
    return PriceFields(
        price("input_cost_per_token"),
        price("cache_read_input_token_cost"),
        known or None,
        price("output_cost_per_token"),
    )
