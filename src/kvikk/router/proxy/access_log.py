"""One JSON line a request. No keys, no headers, no query, no text."""

import logging
import os
import sys
from pathlib import Path
from typing import BinaryIO

import orjson

from kvikk.errors import RequestError
from kvikk.router.proxy.placement import Reported
from kvikk.router.proxy.request import RequestHead

logger = logging.getLogger(__name__)


class Ended:
    """How a request ended. ``at_s`` is the time of day; all else is as in a line of the log."""

    __slots__ = (
        *("at_s", "attempts", "error", "first_byte_s", "head", "id", "model", "replica"),
        *("reported", "request_bytes", "route", "sent_bytes", "status", "tenant", "whole_s"),
    )

    def __init__(
        self,
        at_s: float,
        request_id: str,
        tenant: str,
        head: RequestHead,
        model: str,
        status: int,
        error: str,
        attempts: int,
        replica: str,
        route: str,
        first_byte_s: float | None,
        whole_s: float,
        request_bytes: int,
        sent_bytes: int,
        reported: Reported | None,
    ) -> None:
        self.at_s = at_s
        self.id = request_id
        self.tenant = tenant
        self.head = head
        self.model = model
        self.status = status
        self.error = error
        self.attempts = attempts
        self.replica = replica
        self.route = route
        self.first_byte_s = first_byte_s
        self.whole_s = whole_s
        self.request_bytes = request_bytes
        self.sent_bytes = sent_bytes
        self.reported = reported


class AccessLog:
    """A file that lines are appended to; ``-`` is standard error, None is no log.

    Raises RequestError if it cannot be opened. Where it takes no more, a full disk say, lines are
    lost and requests are not; the program's own log says when that begins and when it ends.
    """

    def __init__(self, path: Path | None) -> None:
        self._file: BinaryIO | None = None
        self._lines: list[bytes] = []
        self._lost = 0
        self._cut = b""  # what ends a line that was begun and not taken whole
        if path is None:
            return
        try:
            self._file = sys.stderr.buffer if str(path) == "-" else path.open("ab")
        except OSError as error:
            raise RequestError(f"cannot write to {path}: {error.strerror}", "access_log") from None

    @property
    def is_open(self) -> bool:
        """Whether lines go anywhere."""
        return self._file is not None

    def write(self, ended: Ended) -> None:
        """Add a request's line."""
        head, first_s, reported = ended.head, ended.first_byte_s, ended.reported
        line = {
            "at_s": int(ended.at_s * 1e3) / 1e3,
            "id": ended.id,
            "tenant": ended.tenant,
            "method": head.method.decode(),
            "path": head.path,
            "model": ended.model,
            "status": ended.status,
            "error": ended.error,
            "attempts": ended.attempts,
            "route": ended.route,
            "first_byte_s": first_s and int(first_s * 1e6) / 1e6,
            "whole_s": int(ended.whole_s * 1e6) / 1e6,
            "request_bytes": ended.request_bytes,
            "sent_bytes": ended.sent_bytes,
            "usage": reported
            and {
                "prompt_tokens": reported.prompt_tokens,
                "cached_tokens": reported.cached_tokens,
                "completion_tokens": reported.completion_tokens,
            },
        }
        self._lines.append(orjson.dumps(line))

    def flush(self) -> None:
        """Hand lines to the system."""
        if self._file is None or not self._lines:
            return
        lines, self._lines = self._lines, []
        data, done = self._cut + b"\n".join([*lines, b""]), 0
        try:
            # Not through a buffer, which would keep what was not taken and refuse the rest.
            while done < len(data):
                done += os.write(self._file.fileno(), data[done:])
        except OSError as error:
            if done:
                self._cut = b"" if data[:done].endswith(b"\n") else b"\n"
            if not self._lost:
                logger.error("the access log lacks lines from now on: %s", error.strerror)
            self._lost += len(lines)
            return
        self._cut = b""
        if self._lost:
            logger.warning("the access log goes on; it lacks %d lines", self._lost)
            self._lost = 0

    def close(self) -> None:
        """No more lines."""
        self.flush()
        if self._file is not None and self._file is not sys.stderr.buffer:
            self._file.close()
