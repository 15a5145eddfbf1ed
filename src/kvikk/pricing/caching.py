"""How a provider's prompt cache works, as data: where it may cut, from when on, for how long.

Nothing here decides about a request; ``boundaries`` and ``provider_cache`` do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvikk.pricing.prompt import Section


@dataclass(frozen=True, slots=True)
class Lifetime:
    """An entry lives ``idle_s`` seconds after its last use, and ``at_most_s`` after it was made."""

    idle_s: float
    at_most_s: float | None = None


@dataclass(frozen=True, slots=True)
class Steps:
    """Boundaries at every ``step_tokens``-th token, wherever pieces end.

    They are counted with ``hidden_tokens`` that the provider puts in front and does not show.
    """

    step_tokens: int
    hidden_tokens: int = 0


@dataclass(frozen=True, slots=True)
class MessageEnds:
    """Boundaries at ends of messages: of the newest user message, of the last tool result of a run,
    of the last system or developer message of the initial run; and at explicit markers.

    A request has ``write_slots``: one for all of the former together, the rest for the latest
    markers. Of its boundaries the latest ``matched`` are compared with earlier entries.
    """

    write_slots: int = 4
    matched: int = 80


@dataclass(frozen=True, slots=True)
class Breakpoints:
    """Boundaries only at markers, of which a request has at most ``most_markers``.

    From each marker an earlier entry is looked for at ``lookback`` positions, its own counted. A
    run of tool uses is one position, and so is a run of tool results.
    """

    most_markers: int = 4
    lookback: int = 20


@dataclass(frozen=True, slots=True)
class Units:
    """Whole prefixes: up to the end of the input, up to the end of the answer, and what two
    requests were seen to have in common, in units of ``unit_tokens``.
    """

    unit_tokens: int


Scheme = Steps | MessageEnds | Breakpoints | Units


@dataclass(frozen=True, slots=True)
class Caching:
    """One provider's rules for one model.

    Nothing under ``minimum_tokens`` is cached. ``lifetimes`` by name, the first one is the default.
    A boundary in a section depends on the parameters listed for it and for all sections in front.
    ``key_separates`` says whether the caller's cache key is part of what must be equal. ``bills_
    writes`` says whether tokens written have a price of their own.
    """

    scheme: Scheme
    minimum_tokens: int
    lifetimes: Mapping[str, Lifetime]
    parameters: Mapping[Section, tuple[str, ...]] = field(default_factory=dict)
    key_separates: bool = False
    bills_writes: bool = False

    @property
    def default_lifetime(self) -> str:
        """The name of what a request gets that asks for nothing."""
        return next(iter(self.lifetimes))

    def lifetime_name(self, asked: str) -> str:
        """The lifetime that ``asked`` for gives: itself, where there is such a one."""
        return asked if asked in self.lifetimes else self.default_lifetime
