"""A wire between who publishes and who listens, that loses what it is told to."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import zmq


class LossyWire:
    """Passes published batches on, but for those that it ``loses``, by their numbers from 0.

    What is repeated goes another way. ``lost`` counts.
    """

    def __init__(self, endpoint: str, loses: Callable[[int], bool]) -> None:
        self.lost = 0
        self._loses = loses
        self._context = zmq.Context()
        self._heard = self._context.socket(zmq.SUB)
        self._heard.setsockopt(zmq.SUBSCRIBE, b"")
        self._heard.connect(endpoint)
        self._told = self._context.socket(zmq.PUB)
        self._told.bind("tcp://127.0.0.1:*")
        self.endpoint = self._told.getsockopt_string(zmq.LAST_ENDPOINT)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def _run(self) -> None:
        numbers = count()
        while not self._ended.is_set():
            if not self._heard.poll(10):
                continue
            frames = self._heard.recv_multipart()
            if self._loses(next(numbers)):
                self.lost += 1
            else:
                self._told.send_multipart(frames)


@contextmanager
def lossy_wire(endpoint: str, loses: Callable[[int], bool]) -> Iterator[LossyWire]:
    wire = LossyWire(endpoint, loses)
    try:
        yield wire
    finally:
        wire.close()
