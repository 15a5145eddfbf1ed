"""A file of JSON lines, written by a thread of its own, so that no disk holds up a request."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

from kvikk.errors import ModelError
from kvikk.wire.events import encode_json

logger = logging.getLogger(__name__)

# Makes a line; runs in the writer's thread.
LineMaker = Callable[[], Any]


def open_log(file: Path, name: str) -> BinaryIO:
    """The file, to append to. Raises ModelError if it cannot be written."""
    try:
        return file.open("ab")
    except OSError as error:
        raise ModelError(f"{name} {file} cannot be written: {error.strerror or error}") from None


class LineLog:
    """Appends to ``file``, which errors call ``name``. Raises ModelError if it cannot be written.

    ``reopen`` is for whoever has moved the file away: what comes later goes to a new one of its
    name, and nothing is lost between the two.
    """

    def __init__(self, file: Path, name: str) -> None:
        self._path = file
        self._name = name
        self._file = open_log(file, name)
        self._entries: SimpleQueue[LineMaker | None] = SimpleQueue()
        self._outdated = False
        self._thread = threading.Thread(target=self._run, name="kvikk-log", daemon=True)
        self._thread.start()

    def put(self, make_line: LineMaker) -> None:
        """Write one more line, soon."""
        self._entries.put(make_line)

    def reopen(self) -> None:
        """Open the file by its name again before the next line."""
        self._outdated = True

    def close(self) -> None:
        """Write what is left, and end."""
        self._entries.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (make_line := self._entries.get()) is not None:
            try:
                if self._outdated:
                    self._outdated = False
                    self._turn_to_new_file()
                self._file.write(encode_json(make_line()) + b"\n")
                if self._entries.empty():
                    self._file.flush()
            except OSError as error:
                logger.error("%s %s lacks a line: %s", self._name, self._path, error.strerror)
        self._file.close()

    def _turn_to_new_file(self) -> None:
        try:
            new = open_log(self._path, self._name)
        except ModelError as error:
            logger.error("%s; the old file is written on", error)
            return
        self._file.close()
        self._file = new
