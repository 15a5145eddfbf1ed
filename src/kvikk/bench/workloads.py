"""What clients ask: sessions of turns, with lengths in tokens and moments of arrival.

A session is what one client does: it sends a turn, waits for the whole answer, and sends the next
turn behind it. Texts are made when they are sent, since a trace may have gigabytes of them.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from kvikk.bench.target import Lengths
from kvikk.text.words import text_of


@dataclass(frozen=True)
class Turn:
    """One message (or whole prompt), made when asked for, and the tokens its answer shall have."""

    text: Callable[[], str]
    output_tokens: int


@dataclass(frozen=True)
class Session:
    """``arrival_s`` after the run's beginning; None: as soon as a client is free.

    ``system`` is the system message, or None.
    """

    turns: tuple[Turn, ...]
    system: str | None = None
    arrival_s: float | None = None


class Workload(Protocol):
    """``num_requests`` in all; ``sessions`` once it is known how long a word is to the server."""

    @property
    def num_requests(self) -> int:
        """Requests in all, failures aside."""

    def sessions(self, lengths: Lengths, seed: int) -> Iterable[Session]:
        """What clients do, all of it decided by ``seed``."""


@dataclass(frozen=True)
class Fixed:
    """Requests that have nothing in common, all of one length.

    ``prompt_tokens`` counts what the server puts around a prompt too.
    """

    num_requests: int = 32
    prompt_tokens: int = 128
    output_tokens: int = 128

    def sessions(self, lengths: Lengths, seed: int) -> Iterator[Session]:
        """One session a request."""
        num_words = lengths.words(max(1, self.prompt_tokens - round(lengths.fixed_tokens)))
        for index in range(self.num_requests):
            text = partial(text_of, num_words, seed, index)
            yield Session((Turn(text, self.output_tokens),))


@dataclass(frozen=True)
class Chat:
    """Conversations of several turns that share one system prompt (0 tokens: none), no more.

    Lengths are those of the messages by themselves, without what a template puts around them.
    """

    num_sessions: int = 16
    num_turns: int = 10
    system_tokens: int = 1000
    message_tokens: int = 39
    output_tokens: int = 48

    @property
    def num_requests(self) -> int:
        """Turns of all sessions."""
        return self.num_sessions * self.num_turns

    def sessions(self, lengths: Lengths, seed: int) -> Iterator[Session]:
        """The conversations."""
        system = None
        if self.system_tokens:
            system = text_of(lengths.words(self.system_tokens), seed, "system")
        num_words = lengths.words(self.message_tokens)
        for session in range(self.num_sessions):
            turns = (
                Turn(partial(text_of, num_words, seed, session, index), self.output_tokens)
                for index in range(self.num_turns)
            )
            yield Session(tuple(turns), system)


def at_rate(sessions: Iterable[Session], per_s: float, seed: int) -> Iterator[Session]:
    """The same sessions, arriving independently of each other: ``per_s`` a second on average."""
    generator = random.Random(repr((seed, "arrivals")))  # noqa: S311 - no secret
    arrival_s = 0.0
    for session in sessions:
        arrival_s += generator.expovariate(per_s)
        yield replace(session, arrival_s=arrival_s)
