"""What a variant is, and what most of them are made of."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.audit.talk import Line, read, sent, text

LONG = 3000


@dataclass(frozen=True)
class Variant:
    """``lines`` of a log; ``cause`` at ``location`` in ``request``; None: nothing at all."""

    name: str
    cause: str | None
    location: str
    make: Callable[[], list[Line]]
    request: int = 1


VARIANTS: list[Variant] = []


def variant(cause: str | None, location: str = "$", request: int = 1) -> Callable[..., None]:
    """Add the decorated maker of lines."""

    def add(make: Callable[[], list[Line]]) -> None:
        VARIANTS.append(Variant(make.__name__, cause, location, make, request))

    return add


def two(
    first: Line, second: Line, total: int = LONG, cached: int = 0, gap_s: float = 20
) -> list[Line]:
    """Two requests with the provider's counts, some seconds apart."""
    return [read(sent(first, 100), total, 0), read(sent(second, 100 + gap_s), total + 20, cached)]


def guess(first: Line, second: Line, gap_s: float = 20) -> list[Line]:
    """Two requests of which the provider's counts are not in the log."""
    return [sent(first, 100), sent(second, 100 + gap_s)]


RULES = text("rules", LONG)
FIRST, MORE = ["What first?"], ["What first?", "This.", "And then?"]
