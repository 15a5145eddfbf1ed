"""Requests that no replica can take at the moment, in their order, and not too many of them."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvikk.router.proxy.messages import RefusalError

if TYPE_CHECKING:
    from kvikk.router.proxy.exchange import Exchange


class WaitingQueue:
    """First come, first served, for each model by itself."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines: dict[str, deque[Exchange]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, exchange: "Exchange") -> None:
        """Put a request at the end. Raises RefusalError (429) if too many wait already."""
        if self._length >= self._limit:
            raise RefusalError(
                429,
                f"all replicas are busy and {self._length} requests wait already; "
                "try again in a moment",
                "queue_full",
                [(b"retry-after", b"1")],
            )
        self._lines.setdefault(exchange.model, deque()).append(exchange)
        self._length += 1

    def remove(self, exchange: "Exchange") -> None:
        """Somebody waits no longer."""
        line = self._lines[exchange.model]
        line.remove(exchange)
        self._length -= 1
        if not line:
            del self._lines[exchange.model]

    def wake(self, can_go: Callable[[str], bool]) -> None:
        """Let those go on whose model has a replica for them, as ``can_go`` says."""
        for model in tuple(self._lines):
            while (line := self._lines.get(model)) and can_go(model):
                exchange = line[0]
                self.remove(exchange)
                exchange.dispatch()
