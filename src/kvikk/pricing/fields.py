"""The fields of one table of a rules file, read one by one, with their place in every error."""

from collections.abc import Callable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from typing import Any, NoReturn

from kvikk.errors import ModelError


class Fields:
    """A table of a document. ``take`` reads a field once; ``finish`` refuses what nobody read."""

    def __init__(self, value: Any, place: str) -> None:
        self._place = place
        if not isinstance(value, Mapping):
            self.fail(f"expected a table, not {_kind(value)}")
        self._values = dict(value)
        self._taken: set[str] = set()

    def fail(self, problem: str) -> NoReturn:
        """Raise ModelError: the place, and what is wrong there."""
        raise ModelError(f"{self._place}: {problem}")

    def take(self, name: str, default: Any, read: Callable[["Fields", str, Any], Any]) -> Any:
        """The field as ``read`` reads it. ``default`` None: it is required; ``...``: None then."""
        self._taken.add(name)
        if name in self._values:
            return read(self, name, self._values[name])
        if default is None:
            self.fail(f"{name} is missing")
        return None if default is ... else default

    def rows(self, name: str) -> Iterator["Fields"]:
        """The tables of a list of tables."""
        self._taken.add(name)
        values = self._values.get(name, [])
        if not isinstance(values, list):
            self.fail(f"{name}: expected a list of tables, not {_kind(values)}")
        for index, value in enumerate(values):
            yield Fields(value, f"{self._place}: {name}[{index}]")

    def inner(self, name: str, value: Any) -> "Fields":
        """A table in this one."""
        return Fields(value, f"{self._place}: {name}")

    def on_top_of(self, values: Mapping[str, Any]) -> "Fields":
        """What has not been taken yet, on top of ``values``."""
        rest = {name: value for name, value in self._values.items() if name not in self._taken}
        return Fields({**values, **rest}, self._place)

    def finish(self) -> None:
        """Raise ModelError for fields that were not taken: they are misspelt or misplaced."""
        unknown = sorted(self._values.keys() - self._taken)
        if unknown:
            known = ", ".join(sorted(self._taken))
            self.fail(f"unknown field {unknown[0]!r}; known are {known}")

    def text(self, name: str, value: Any) -> str:
        """A string."""
        if not isinstance(value, str):
            self.fail(f"{name}: expected a string, not {_kind(value)}")
        return value

    def texts(self, name: str, value: Any) -> tuple[str, ...]:
        """A list of strings."""
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fail(f"{name}: expected a list of strings, not {_kind(value)}")
        return tuple(value)

    def table(self, name: str, value: Any) -> Mapping[str, Any]:
        """A table."""
        if not isinstance(value, Mapping):
            self.fail(f"{name}: expected a table, not {_kind(value)}")
        return value

    def flag(self, name: str, value: Any) -> bool:
        """True or false."""
        if not isinstance(value, bool):
            self.fail(f"{name}: expected true or false, not {_kind(value)}")
        return value

    def count(self, name: str, value: Any) -> int:
        """A whole number, not negative."""
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            self.fail(f"{name}: expected a whole number from 0 on, not {value!r}")
        return value

    def positive(self, name: str, value: Any) -> int:
        """A whole number from 1 on."""
        if self.count(name, value) < 1:
            self.fail(f"{name}: expected a whole number from 1 on, not {value!r}")
        return int(value)

    def number(self, name: str, value: Any) -> Decimal:
        """A number, not negative."""
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            self.fail(f"{name}: expected a number, not {_kind(value)}")
        number = Decimal(value)
        if not number.is_finite() or number < 0:
            self.fail(f"{name}: expected a number from 0 on, not {value}")
        return number

    def day(self, name: str, value: Any) -> date:
        """A date, or in JSON its text."""
        if isinstance(value, str):
            try:
                return date.fromisoformat(value)
            except ValueError:
                self.fail(f"{name}: expected a date such as 2026-11-30, not {value[:40]!r}")
        if type(value) is not date:
            self.fail(f"{name}: expected a date such as 2026-11-30, not {value!r}")
        return value


def _kind(value: Any) -> str:
    names = {dict: "a table", list: "a list", str: "a string", bool: "true or false"}
    return names.get(type(value), f"{value!r}"[:40])
