"""Limits for continuous integration: a hit rate, a cost, a number of tokens, or a class."""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from kvikk.audit.advice import CLASSES
from kvikk.audit.totals import Totals
from kvikk.errors import RequestError

_LIMIT = re.compile(r"(hit[-_]rate|cost|missed[-_]tokens)\s*([<>])\s*\$?([\d.]+)\s*(%?)")
_COMPARE: dict[str, Callable[[float, float], bool]] = {"<": operator.lt, ">": operator.gt}


@dataclass(frozen=True, slots=True)
class Limit:
    """``text`` as it was given. A class has no number."""

    text: str
    measure: str
    sign: str = ""
    number: float = 0.0


def parse_limit(text: str) -> Limit:
    """Read ``hit_rate<80%``, ``cost>1.50``, ``missed_tokens>1000``, or a class or its beginning.

    Raises RequestError for anything else.
    """
    found = _LIMIT.fullmatch(text.strip())
    if found is not None:
        try:
            number = float(found[3]) / (100 if found[4] else 1)
        except ValueError:
            raise RequestError(f"--fail-on {text!r}: {found[3]!r} is no number") from None
        return Limit(text, found[1].replace("-", "_"), found[2], number)
    name = text.strip().removeprefix("cause:").removesuffix(".*")
    if any(one == name or one.startswith(f"{name}.") for one in CLASSES):
        return Limit(text, name)
    raise RequestError(
        f"--fail-on {text!r}: expected hit_rate<80%, cost>1.50, missed_tokens>1000, "
        "or a class such as tools.order or tools"
    )


def failure(limit: Limit, totals: Totals) -> str | None:
    """One line on how a limit is broken; None if it is kept."""
    if not limit.sign:
        found = {
            cause: total
            for cause, total in totals.causes.items()
            if cause == limit.measure or cause.startswith(f"{limit.measure}.")
        }
        number = sum(total.findings for total in found.values())
        return f"{limit.text}: {number:,} found" if number else None
    match limit.measure:
        case "hit_rate":
            value: float | None = totals.hit_rate
        case "cost":
            value = totals.missed_cost
        case _:
            value = totals.missed_tokens
    if value is None:
        return f"{limit.text}: what the misses cost is not known, for want of a price"
    if _COMPARE[limit.sign](value, limit.number):
        return f"{limit.text}: it is {value:.4g}"
    return None
