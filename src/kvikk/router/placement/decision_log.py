"""The decision log: a line of JSON for each answered request, which ``kvikk replay`` reads.

Blocks are named by the first bytes of their keys: a line can be replayed, and no prompt be read.
"""

import logging
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import orjson

from kvikk.errors import RequestError

logger = logging.getLogger(__name__)

KEY_BYTES = 8


class DecisionLog:
    """Appends to ``file`` in a thread of its own. Raises RequestError if it cannot be written."""

    def __init__(self, file: Path) -> None:
        try:
            # Without a buffer, which would keep what a full disk did not take.
            self._file = file.open("ab", buffering=0)
        except OSError as error:
            raise RequestError(f"{file}: cannot be written: {error.strerror}") from None
        self._lines: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kvikk-decision-log", daemon=True)
        self._thread.start()

    def write(self, line: dict[str, Any]) -> None:
        """Append one line, soon."""
        self._lines.put(line)

    def close(self) -> None:
        """Write what is left, and end."""
        self._lines.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._file.write(orjson.dumps(line) + b"\n")
            except OSError as error:
                logger.error("the decision log lacks a line: %s", error.strerror)
        self._file.close()
