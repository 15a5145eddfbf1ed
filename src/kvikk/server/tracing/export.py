"""Spans on their way to an OpenTelemetry collector, made and sent by a thread of their own.

A request leaves its trace in a queue and goes on. When the collector is slower than the requests,
or dead, the queue is full at some time, and what comes then is dropped and counted.
"""

import logging
import threading
import time
from collections import Counter, deque
from importlib.util import find_spec
from urllib.parse import urlsplit

from kvikk.errors import ModelError
from kvikk.server.tracing.record import RequestTrace

logger = logging.getLogger(__name__)

MAX_WAITING = 4096  # traces of requests, about 2 KB each
_MAX_BATCH = 256
_BATCH_S = 1.0  # a trace waits so long for others to be sent with
_CLOSING_S = 3.0
_SAID_EVERY_S = 60.0


def check_endpoint(endpoint: str) -> None:
    """Raise ModelError for an address where no spans can be sent, or without the means to."""
    try:
        parts = urlsplit(endpoint)
        is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # half of an IPv6 address, a port beyond 65,535
        is_address = False
    if not is_address:
        raise ModelError(
            f"{endpoint!r} is no address of a collector, which is like "
            "http://localhost:4318/v1/traces"
        )
    try:
        found = find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ModelError("traces need OpenTelemetry: pip install 'kvikk[otel]'")


class SpanExport:
    """Sends spans to ``endpoint`` over OTLP/HTTP. Headers, certificates, sampling and the service's
    name are those of OpenTelemetry's own environment variables.

    ``counts`` has the traces that were ``sent``, were ``refused`` by the collector or not taken in
    time, and were ``dropped`` for want of room.
    """

    def __init__(self, endpoint: str, max_waiting: int = MAX_WAITING) -> None:
        self.endpoint = endpoint
        self.counts: Counter[str] = Counter(sent=0, refused=0, dropped=0)
        self._max_waiting = max_waiting
        self._waiting: deque[RequestTrace] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._said_s = -_SAID_EVERY_S
        self._said_lost = 0
        from kvikk.server.tracing.spans import SpanSender

        self._sender = SpanSender(endpoint)
        self._thread = threading.Thread(target=self._run, name="kvikk-spans", daemon=True)
        self._thread.start()

    def put(self, trace: RequestTrace) -> None:
        """Send what became of one request, soon or never. Does not wait."""
        with self._changed:
            if len(self._waiting) < self._max_waiting:
                self._waiting.append(trace)
                if len(self._waiting) in (1, _MAX_BATCH):
                    self._changed.notify()
                return
            self.counts["dropped"] += 1
        self._say_lost("the collector is too slow")

    def close(self) -> None:
        """Send what waits, as far as that is a matter of seconds, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(_CLOSING_S)
        self._sender.close()
        left = len(self._waiting)
        if left:
            logger.warning("%d requests' spans were not sent to %s", left, self.endpoint)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._waiting)
                self._changed.wait_for(
                    lambda: self._closing or len(self._waiting) >= _MAX_BATCH, _BATCH_S
                )
                if not self._waiting:
                    return
                count = min(len(self._waiting), _MAX_BATCH)
                batch = [self._waiting.popleft() for _ in range(count)]
            try:
                sent = self._sender.send(batch)
            except Exception:
                logger.exception("spans could not be made")
                sent = False
            self.counts["sent" if sent else "refused"] += count
            if not sent:
                self._say_lost(self._sender.last_words)

    def _say_lost(self, why: str) -> None:
        """A line in the log, once in a while."""
        now_s = time.monotonic()
        if now_s - self._said_s < _SAID_EVERY_S:
            return
        lost = self.counts["refused"] + self.counts["dropped"]
        logger.warning(
            "spans of %d requests did not reach %s: %s", lost - self._said_lost, self.endpoint, why
        )
        self._said_s, self._said_lost = now_s, lost
