"""Listening to one replica's KV events: in order, without a gap, or starting over.

Publish and subscribe may drop messages and has no beginning. A number that is not the next one
means that something is missing: the sender is asked for it, and if it does not have it any more,
what is believed of the replica is forgotten.
"""

import asyncio
import logging
from collections.abc import Callable

import zmq
import zmq.asyncio

from kvikk.errors import RequestError
from kvikk.wire.kv_events import (
    END_OF_REPLAY,
    MAX_PAYLOAD_BYTES,
    KvBatch,
    decode_batch,
    decode_sequence,
    encode_sequence,
)

logger = logging.getLogger(__name__)

_REPLAY_TIMEOUT_S = 2.0


class Subscription:
    """``hear`` is told of every batch once and in order, ``forget`` that some were lost.

    ``replay`` None is a sender that cannot repeat what it sent.
    """

    def __init__(
        self,
        endpoint: str,
        replay: str | None,
        *,
        hear: Callable[[KvBatch], None],
        forget: Callable[[], None],
    ) -> None:
        self.endpoint = endpoint
        self.batches = 0
        self.gaps = 0
        self.repaired_gaps = 0
        self.refused = 0
        self._replay = replay
        self._hear = hear
        self._forget = forget
        self._next = 0

    async def run(self) -> None:
        """Listen until cancelled."""
        context = zmq.asyncio.Context.instance()
        with context.socket(zmq.SUB) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVHWM, 100_000)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_PAYLOAD_BYTES)
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            socket.connect(self.endpoint)
            # What was there before us: an old sender has more than one could ask for.
            await self._repeat(context)
            while True:
                await self._take(context, await socket.recv_multipart())

    async def _take(self, context: zmq.asyncio.Context, frames: list[bytes]) -> None:
        try:
            if len(frames) != 3:
                raise RequestError(f"a message of KV events has 3 frames, not {len(frames)}")
            number = decode_sequence(frames[1])
            batch = decode_batch(frames[2])
        except RequestError as error:
            self.refused += 1
            logger.warning("%s: %s", self.endpoint, error)
            return
        if number < self._next:
            if number > 0 and self._next - number < 1000:
                return  # heard already, in a replay
            # Numbers begin again: it is another process.
            self._start_over(number)
        elif number > self._next:
            self.gaps += 1
            first = self._next
            await self._repeat(context)
            if self._next > number:
                self.repaired_gaps += 1
                return
            if self._next != number or first == 0:
                self._start_over(number)
        self._tell(number, batch)

    def _start_over(self, number: int) -> None:
        self._forget()
        self._next = number

    def _tell(self, number: int, batch: KvBatch) -> None:
        self._next = number + 1
        self.batches += 1
        self._hear(batch)

    async def _repeat(self, context: zmq.asyncio.Context) -> None:
        """Hear again what was sent from the next number on, as far as it follows without a gap."""
        if self._replay is None:
            return
        with context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_PAYLOAD_BYTES)
            socket.connect(self._replay)
            try:
                await socket.send_multipart([b"", encode_sequence(self._next)])
                while True:
                    frames = await asyncio.wait_for(socket.recv_multipart(), _REPLAY_TIMEOUT_S)
                    number, payload = decode_sequence(frames[-2]), frames[-1]
                    if number == END_OF_REPLAY:
                        return
                    if number > self._next:
                        self._start_over(number)
                    if number == self._next:
                        self._tell(number, decode_batch(payload))
            except TimeoutError:
                logger.warning("%s: no answer about what was missed", self._replay)
            except (RequestError, IndexError) as error:
                self.refused += 1
                logger.warning("%s: %s", self._replay, error)
