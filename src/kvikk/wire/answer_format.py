"""What every API can do with an answer: write it down whole, or as the events of a stream."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from kvikk.wire.deltas import AnswerDelta, WholeAnswer
from kvikk.wire.errors import ErrorBody
from kvikk.wire.usage import Usage


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event, with a name where the API names its events."""

    data: dict[str, Any]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """Why an answer ends: the model stopped, or a stop string did, or there were enough tokens."""

    reason: Literal["stop", "length"]
    stop_string: str | None = None


class AnswerFormat(Protocol):
    """One answer in the words of one API: ``whole``, or ``begin``, ``delta``, …, ``end``.

    A stream that fails after its beginning has ``failure`` in the place of ``end``.
    """

    def whole(self, answer: WholeAnswer, ending: Ending, usage: Usage) -> dict[str, Any]:
        """The body of a whole answer."""
        ...

    def begin(self, usage: Usage) -> Iterable[Event]:
        """What a stream begins with; of ``usage`` the prompt's part is final."""
        ...

    def delta(self, delta: AnswerDelta) -> Iterable[Event]:
        """The events for one more piece."""
        ...

    def end(self, ending: Ending, usage: Usage | None) -> Iterable[Event]:
        """What a stream ends with; at least one event.

        ``usage`` is None while other answers to the same request go on, where an API has several.
        """
        ...

    def failure(self, error: ErrorBody) -> Iterable[Event]:
        """How a stream tells that it cannot go on."""
        ...

    @property
    def done(self) -> bytes:
        """The bytes behind the last event."""
        ...


def merge(bodies: Sequence[dict[str, Any]], usage: Usage) -> dict[str, Any]:
    """One body of several answers' to one request, where an API has ``choices``."""
    if len(bodies) == 1:
        return bodies[0]
    choices = [choice for body in bodies for choice in body["choices"]]
    return bodies[0] | {"choices": choices, "usage": usage.to_json()}
