"""Tells the world what the prefix cache gains and loses, as vLLM does: KV events over ZeroMQ.

The engine's thread puts events down and goes on. A thread of its own gives them numbers, sends them
to whoever subscribes, and keeps the latest batches for those who missed some.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

import zmq

from kvikk.cache.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvikk.engine.books import Books
from kvikk.errors import ModelError
from kvikk.wire.kv_events import (
    END_OF_REPLAY,
    KvBatch,
    KvCleared,
    KvEvent,
    KvRemoved,
    KvStored,
    decode_sequence,
    encode_batch,
    encode_sequence,
    published_salt,
)

logger = logging.getLogger(__name__)

# As many as vLLM keeps.
_KEPT_BATCHES = 10_000
_MEDIUM = "CPU"
_WAKE = "inproc://kvikk-kv-events"


class KvEventPublisher:
    """Publishes at ``endpoint`` and answers at ``replay`` what was sent from a number on.

    ``*`` in the place of a port takes any free one; the two are then where it turned out to be.
    Raises ModelError if an address cannot be had.
    """

    def __init__(self, endpoint: str, replay: str | None = None) -> None:
        self._events: SimpleQueue[KvEvent | None] = SimpleQueue()
        self._context = zmq.Context()
        self._publish = self._bind(zmq.PUB, endpoint)
        self._replay = None if replay is None else self._bind(zmq.ROUTER, replay)
        self.endpoint = _address(self._publish)
        self.replay_endpoint = None if self._replay is None else _address(self._replay)
        # The engine's end and ours of a line that only says "there is something".
        self._woken = self._bind(zmq.PULL, _WAKE)
        self._waker = self._context.socket(zmq.PUSH)
        self._waker.connect(_WAKE)
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=_KEPT_BATCHES)
        self._number = 0
        self._thread = threading.Thread(target=self._run, name="kvikk-kv-events", daemon=True)
        self._thread.start()

    def follow(self, books: Books) -> None:
        """Publish whatever ``books`` hear from now on; called and heard in the engine's thread."""
        books.on_event = self._hear

    def close(self) -> None:
        """Send what is left, and end."""
        self._events.put(None)
        # A socket belongs to one thread: the engine's has stopped when this is called.
        self._wake()
        self._thread.join()
        self._context.destroy(linger=100)

    def _hear(self, event: Event, token_ids: Sequence[int], salt: bytes, adapter: str) -> None:
        if isinstance(event, BlockStored):
            # As in vLLM, an adapter's name stands among what is hashed beside the tokens.
            names = [*filter(None, (adapter, published_salt(salt) if salt else ""))]
            extra = (names,) if names and event.parent_key is None else ()
            self._events.put(
                KvStored(
                    event.keys,
                    event.parent_key,
                    token_ids,
                    event.block_size,
                    medium=_MEDIUM,
                    adapter=adapter,
                    extra_keys=(*extra, *[None] * (len(event.keys) - 1)) if extra else (),
                    group=event.group,
                    window_tokens=event.window_tokens,
                    keeps_all=event.window_tokens is None,
                )
            )
        elif isinstance(event, BlockRemoved):
            self._events.put(KvRemoved(event.keys, _MEDIUM, event.group))
        elif isinstance(event, AllBlocksCleared):
            self._events.put(KvCleared())
        self._wake()

    def _wake(self) -> None:
        with suppress(zmq.Again):  # a thousand calls are there already
            self._waker.send(b"", zmq.NOBLOCK)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._woken, zmq.POLLIN)
        if self._replay is not None:
            poller.register(self._replay, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._replay is not None and self._replay in ready:
                self._repeat(self._replay)
            if self._woken in ready:
                self._woken.recv()
                if not self._send():
                    return

    def _send(self) -> bool:
        """Send what has come as one batch; False at the end."""
        events: list[KvEvent] = []
        goes_on = True
        try:
            while True:
                event = self._events.get_nowait()
                if event is None:
                    goes_on = False
                else:
                    events.append(event)
        except Empty:
            pass
        if events:
            payload = encode_batch(KvBatch(time.time(), tuple(events)))
            self._kept.append((self._number, payload))
            self._publish.send_multipart([b"", encode_sequence(self._number), payload])
            self._number += 1
        return goes_on

    def _repeat(self, socket: "zmq.Socket[bytes]") -> None:
        frames = socket.recv_multipart()
        try:
            who, _, wanted = frames
            first = decode_sequence(wanted)
        except Exception:
            logger.warning("a request to repeat KV events makes no sense: %d frames", len(frames))
            return
        for number, payload in self._kept:
            if number >= first:
                socket.send_multipart([who, b"", b"", encode_sequence(number), payload])
        socket.send_multipart([who, b"", b"", encode_sequence(END_OF_REPLAY), b""])

    def _bind(self, kind: int, endpoint: str) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ModelError(f"KV events cannot be published at {endpoint}: {error}") from None
        return socket


def _address(socket: "zmq.Socket[bytes]") -> str:
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)
