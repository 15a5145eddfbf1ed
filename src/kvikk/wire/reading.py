"""JSON from strangers, read field by field: whatever is wrong is one line that names its place.

A place is written as a caller would in code: ``messages[1].content``.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from kvikk.errors import RequestError

# Beyond this nothing is a count, a seed or a token id, and other languages are not exact.
MAX_INTEGER = 2**63 - 1


def parse_json(body: bytes) -> "JsonValue":
    """The value that a request's body is. Raises RequestError if it is not UTF-8 or not JSON."""
    try:
        return JsonValue(json.loads(body.decode(), parse_constant=_refuse_constant))
    except UnicodeDecodeError as error:
        raise RequestError(
            f"the body is not UTF-8 text (byte {error.start}); expected a JSON object"
        ) from None
    except RecursionError:
        raise RequestError("the body is nested too deeply") from None
    except ValueError as error:
        # Python's own words for some of it advise Python programmers.
        reason = "a number has too many digits" if "digits" in str(error) else str(error)
        if "BOM" in reason:
            reason = "it begins with a byte order mark"
        raise RequestError(f"the body is not valid JSON: {reason}") from None


class JsonValue:
    """A value inside a body, and its path there; "" is the body itself.

    Null is as good as absent. All readers raise RequestError, naming the path, for another type.
    """

    def __init__(self, value: object, path: str = "") -> None:
        self.value = value
        self.path = path

    def get(self, name: str) -> "JsonValue":
        """The member ``name`` of an object; a null where it has none."""
        return JsonValue(self.members().get(name), f"{self.path}.{name}" if self.path else name)

    def items(self) -> Iterator["JsonValue"]:
        """The elements of a list."""
        for index, item in enumerate(self.elements()):
            yield JsonValue(item, f"{self.path}[{index}]")

    @property
    def is_null(self) -> bool:
        """Whether the value is null or absent."""
        return self.value is None

    def members(self) -> Mapping[str, Any]:
        """The members of an object."""
        if not isinstance(self.value, dict):
            self.fail_type("an object")
        return self.value

    def refuse_others(self, *known: str) -> None:
        """Refuse an object's members that are not ``known``, unless they ask for nothing."""
        for name, value in self.members().items():
            if name not in known and value not in (None, False, "", [], {}):
                self.get(name).fail(f"is not known here; expected {' or '.join(known)}")

    def elements(self) -> Sequence[Any]:
        """The elements of a list, as they are."""
        if not isinstance(self.value, list):
            self.fail_type("a list")
        return self.value

    def string(self) -> str:
        """A string."""
        if not isinstance(self.value, str):
            self.fail_type("a string")
        return self.value

    def boolean(self, default: bool) -> bool:
        """True or false; ``default`` for null."""
        if self.value is None:
            return default
        if not isinstance(self.value, bool):
            self.fail_type("true or false")
        return self.value

    def integer(self, minimum: int, maximum: int = MAX_INTEGER) -> int:
        """A whole number from ``minimum`` to ``maximum``."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail_type("a whole number")
        if not minimum <= value <= maximum:
            limit = f"at least {minimum}" if value < minimum else f"at most {maximum}"
            self.fail(f"must be {limit}, not {_short(value)}")
        return value

    def number(self, minimum: float, maximum: float) -> float:
        """A finite number from ``minimum`` to ``maximum``."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail_type("a number")
        if isinstance(value, float) and not math.isfinite(value):
            self.fail(f"expected a finite number, not {value}")
        if not minimum <= value <= maximum:
            self.fail(f"must be from {minimum:g} to {maximum:g}, not {_short(value)}")
        return float(value)

    def fail(self, problem: str) -> NoReturn:
        """Raise RequestError with ``problem`` at this place."""
        place = self.path or "the body"
        raise RequestError(f"{place}: {problem}", self.path or None)

    def fail_type(self, expected: str) -> NoReturn:
        """Raise RequestError saying what was ``expected`` and what is there."""
        if self.value is None:
            self.fail(f"is missing; expected {expected}")
        self.fail(f"expected {expected}, not {_kind(self.value)}")


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, int | float):
        return _short(value)
    return "a list" if isinstance(value, list) else "an object"


def _short(value: float) -> str:
    return str(value) if abs(value) < 10**20 else "a number of that size"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
