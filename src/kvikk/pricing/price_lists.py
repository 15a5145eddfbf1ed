"""Puts the prices of one model together from all rows about it, field by field."""

from collections.abc import Sequence
from datetime import date
from decimal import Decimal

from kvikk.pricing.prices import Price, PriceList, Prices
from kvikk.pricing.rows import VENDORS_OWN, PriceFields, PriceRow, Rows, Scope, closest, filled
from kvikk.pricing.unknown import Unknown


def price_list(
    name: str, own: Rows, built_in: Rows, provider: str, channel: str, model: str, on: date | None
) -> tuple[PriceList, tuple[Scope, ...]]:
    """The prices of a model, which errors call ``name``, and the rows that had a say in them.

    A row about the channel wins over one about the vendor's own API, and a user's over ours; within
    these the closest and latest. What no row says is Unknown.
    """
    rows = [
        row
        for source in (own, built_in)
        for by in dict.fromkeys((channel, VENDORS_OWN))
        for row in _closest_rows(source, provider, by, model, on)
    ]
    base = _together([row.prices for row in rows])
    # The first row that has tiers has all of them: a limit belongs to the prices beside it.
    tiers = next((row.tiers for row in rows if row.tiers), ())
    return (
        PriceList(
            _dollars(name, base),
            _relative(name, base),
            tuple(
                (above, _dollars(f"{name} above {above:,} tokens", fields))
                for above, fields in tiers
            ),
        ),
        tuple(row.scope for row in rows),
    )


def _closest_rows(
    rows: Rows, provider: str, channel: str, model: str, on: date | None
) -> list[PriceRow]:
    scopes = ((index, row.scope) for index, row in enumerate(rows.prices))
    return [rows.prices[index] for index in closest(scopes, provider, channel, model, on)]


def _together(rows: Sequence[PriceFields]) -> PriceFields:
    together = PriceFields()
    for row in rows:
        together = filled(together, row)
    return together


def _dollars(name: str, fields: PriceFields) -> Prices:
    """In US dollars; where only a share of the input price is known, that of it."""

    def price(what: str, dollars: Decimal | None, share: Decimal | None) -> Price:
        if dollars is not None:
            return dollars
        if share is not None and fields.input is not None:
            return share * fields.input
        return Unknown(f"no price of {name} {what} is known")

    dollars, shares = fields.write or {}, fields.write_of_input or {}
    return Prices(
        price("for input", fields.input, None),
        price("for reading from the cache", fields.read, fields.read_of_input),
        {
            lifetime: price(
                f"for writing to the cache ({lifetime})",
                dollars.get(lifetime),
                shares.get(lifetime),
            )
            for lifetime in {**dollars, **shares}
        },
        price("for output", fields.output, None),
    )


def _relative(name: str, fields: PriceFields) -> Prices:
    """In units of the input price; where only dollars are known, what follows from them."""

    def share(what: str, dollars: Decimal | None, known: Decimal | None) -> Price:
        if known is not None:
            return known
        if dollars is not None and fields.input:
            return dollars / fields.input
        return Unknown(f"no price of {name} {what} is known")

    dollars, shares = fields.write or {}, fields.write_of_input or {}
    return Prices(
        Decimal(1),
        share("for reading from the cache", fields.read, fields.read_of_input),
        {
            lifetime: share(
                f"for writing to the cache ({lifetime})",
                dollars.get(lifetime),
                shares.get(lifetime),
            )
            for lifetime in {**dollars, **shares}
        },
        share("for output", fields.output, None),
    )
