"""Takes calls as they end, in the order in which they began: a line of the log, an audit.

An auditor compares with what came before, so a call waits here until all that began before it
have ended. Work is done on a thread of its own: nobody's answer waits for it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import orjson

from kvikk.audit.auditor import Auditor
from kvikk.audit.capture.answers import read_answer
from kvikk.audit.capture.calls import Call
from kvikk.audit.exchange import make_exchange
from kvikk.audit.findings import Finding
from kvikk.audit.readers.log import LogCounts
from kvikk.audit.run import AuditedLog
from kvikk.audit.secrets import open_private, without_secrets
from kvikk.audit.totals import Totals
from kvikk.errors import RequestError

# Of a longer answer the rest is passed on and not looked at.
_MOST_ANSWER_BYTES = 64 << 20
# One call that never ends must not hold up all others.
_MOST_WAITING = 512


@dataclass(eq=False)
class Taking:
    """A call in progress. Feed it the answer's bytes; ``Recorder.end`` when there are no more."""

    call: Call
    at_s: float
    first_byte_s: float | None = None
    status: int | None = None
    encoding: str = ""
    content: bytearray = field(default_factory=bytearray)
    has_ended: bool = False

    def begin_answer(self, status: int, encoding: str) -> None:
        """The answer's head is there."""
        self.status, self.encoding = status, encoding

    def feed(self, data: bytes) -> None:
        """Bytes of its body, as they came."""
        if self.first_byte_s is None:
            self.first_byte_s = time.time()
        if len(self.content) < _MOST_ANSWER_BYTES:
            self.content += data


class Recorder:
    """Writes calls to ``record``, audits them, or both. Each finding goes to ``on_finding``.

    Raises RequestError if ``record`` cannot be written.
    """

    def __init__(self, record: Path | None, on_finding: Callable[[Finding], None] | None) -> None:
        self._file = None if record is None else _opened(record)
        self._on_finding = on_finding
        self._auditor = None if on_finding is None else Auditor()
        self._totals = Totals()
        self._index = 0
        self._counts = LogCounts()
        self._waiting: deque[Taking] = deque()
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "kvikk-audit")
        self._last: Future[None] | None = None

    def begin(self, call: Call) -> Taking:
        """A call is about to be sent."""
        taking = Taking(call, time.time())
        with self._lock:
            self._waiting.append(taking)
        return taking

    def end(self, taking: Taking) -> None:
        """There is no more of its answer, for whatever reason. To say it twice is no harm."""
        with self._lock:
            taking.has_ended = True
            crowded = len(self._waiting) > _MOST_WAITING
            while self._waiting and (self._waiting[0].has_ended or crowded):
                first, crowded = self._waiting.popleft(), False
                if first.has_ended:
                    self._last = self._thread.submit(self._take, first)
                else:
                    self._waiting.append(first)

    def audited(self, name: str) -> AuditedLog:
        """Everything so far, once it has been looked at."""
        self.settle()
        return AuditedLog(name, (), self._totals, self._counts)

    def settle(self) -> None:
        """Wait for what has ended to be written and audited."""
        with self._lock:
            last = self._last
        if last is not None:
            last.result()

    def close(self) -> None:
        """Look at what is left, in the order it began, and take no more."""
        with self._lock:
            left = [taking for taking in self._waiting if taking.has_ended]
            self._waiting.clear()
            for taking in left:
                self._last = self._thread.submit(self._take, taking)
        self._thread.shutdown()
        if self._auditor is not None and self._on_finding is not None:
            for finding in self._auditor.close():
                self._totals.find(finding)
        if self._file is not None:
            self._file.close()

    def _take(self, taking: Taking) -> None:
        """Whatever goes wrong here is told in the report, and never to whoever made the call."""
        self._counts.lines += 1
        try:
            self._write_and_audit(taking)
        except Exception as error:
            self._counts.break_line(f"call {self._counts.lines:,}", type(error).__name__)

    def _write_and_audit(self, taking: Taking) -> None:
        call = taking.call
        if taking.status is None:
            return  # it was never answered: nothing was read or written
        answer = read_answer(call.api, taking.encoding, bytes(taking.content))
        line: dict[str, Any] = {
            "id": str((answer or {}).get("id") or ""),
            "at_s": round(taking.at_s, 3),
            "first_byte_s": None if taking.first_byte_s is None else round(taking.first_byte_s, 3),
            "provider": call.provider,
            "api": call.api,
            "account": call.account,
            "status": taking.status,
        }
        if self._file is not None:
            said = without_secrets({"request": call.body, "response": answer})
            self._file.write(orjson.dumps(line | said) + b"\n")
            self._file.flush()
        if self._auditor is None or self._on_finding is None:
            return
        exchange = make_exchange(self._index, call.body, response=answer, **line)
        if exchange is None:
            return
        self._index += 1
        audited = self._auditor.feed(exchange)
        self._totals.add(audited)
        for finding in audited.findings:
            self._on_finding(finding)


def _opened(record: Path) -> IO[bytes]:
    """Nobody but this user may read what people said."""
    try:
        return open_private(record)
    except OSError as error:
        raise RequestError(f"cannot write {record}: {error.strerror or error}") from None
