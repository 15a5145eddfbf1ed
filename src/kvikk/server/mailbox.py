"""From the engine's thread to the event loop: a step's outputs with one wake-up for them all."""

import asyncio
from collections import deque

from kvikk.engine.requests import Output
from kvikk.wire.ledger import RequestLedger


class Mailbox:
    """One request's outputs, waiting to be sent. Belongs to the event loop.

    ``ledger`` is there before the first output, if the request was admitted at all; ``latest`` is
    the last output so far.
    """

    def __init__(self) -> None:
        self.ledger: RequestLedger | None = None
        self.latest: Output | None = None
        self._outputs: list[Output] = []
        self._arrived = asyncio.Event()
        self.disconnected = False

    def put(self, output: Output) -> None:
        """Add an output."""
        self.latest = output
        self._outputs.append(output)
        self._arrived.set()

    def disconnect(self) -> None:
        """Say that nobody waits for the answer any more."""
        self.disconnected = True
        self._arrived.set()

    async def take(self) -> list[Output]:
        """Wait for outputs, or for the client to go; all outputs that are there, in order."""
        await self._arrived.wait()
        self._arrived.clear()
        outputs, self._outputs = self._outputs, []
        return outputs


class Postman:
    """Carries outputs to mailboxes: ``post`` in the engine's thread, the rest in the loop's.

    A step brings an output for every running request. Waking the loop costs a system call; it is
    woken for the first and finds the others.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._bag: deque[tuple[Mailbox, Output]] = deque()
        self._on_the_way = False

    def post(self, mailbox: Mailbox, output: Output) -> None:
        """Bring ``output`` to ``mailbox`` soon. Raises RuntimeError if the loop is closed."""
        self._bag.append((mailbox, output))
        if not self._on_the_way:
            self._on_the_way = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # Cleared before the bag is emptied: what is posted from now on either is found below or
        # sends for another delivery.
        self._on_the_way = False
        while self._bag:
            mailbox, output = self._bag.popleft()
            mailbox.put(output)
