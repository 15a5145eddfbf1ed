"""One JSON line a request. No keys, no headers, no query, no text."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import orjson

from kvikk.errors import RequestError

if TYPE_CHECKING:
    from kvikk.router.proxy.exchange import Exchange


class AccessLog:
    """A file that lines are appended to; ``-`` is standard error, None is no log.

    Raises RequestError if it cannot be opened.
    """

    def __init__(self, path: Path | None) -> None:
        self._file: BinaryIO | None = None
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

    def write(self, exchange: "Exchange", status: int, error: str, whole_s: float) -> None:
        """Add a request's line."""
        assert self._file is not None
        request, reported = exchange.request, exchange.reported
        head, first_s = request.head, exchange.first_byte_s
        line = {
            "at_s": int(time.time() * 1e3) / 1e3,
            "id": request.id,
            "tenant": exchange.tenant.name,
            "method": head.method.decode(),
            "path": head.path,
            "model": exchange.model,
            "status": status,
            "error": error,
            "attempts": exchange.attempts,
            "route": exchange.route,
            "first_byte_s": first_s and int(first_s * 1e6) / 1e6,
            "whole_s": int(whole_s * 1e6) / 1e6,
            "request_bytes": request.size_bytes,
            "sent_bytes": exchange.sent_bytes,
            "usage": reported
            and {
                "prompt_tokens": reported.prompt_tokens,
                "cached_tokens": reported.cached_tokens,
                "completion_tokens": reported.completion_tokens,
            },
        }
        self._file.write(orjson.dumps(line) + b"\n")

    def flush(self) -> None:
        """Hand lines to the system."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """No more lines."""
        if self._file is not None and self._file is not sys.stderr.buffer:
            self._file.close()
