"""The server's clock for lifetimes and bills, which tests can put forward."""

import time
from contextlib import suppress
from pathlib import Path

from kvikk.errors import ModelError


class Clock:
    """Seconds since 1970, and those that stand in ``file``, if there is one, on top.

    The file holds one number and is read every time. What cannot be read as one is ignored later
    on, and a ModelError at first.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._ahead_s = 0.0
        if file is None:
            return
        try:
            self._ahead_s = float(file.read_text())
        except OSError as error:
            raise ModelError(
                f"the clock file {file} cannot be read: {error.strerror or error}"
            ) from None
        except ValueError:
            raise ModelError(
                f"the clock file {file} holds no number; expected seconds to add, such as 0"
            ) from None

    def __call__(self) -> float:
        """The time now."""
        if self._file is not None:
            with suppress(OSError, ValueError):  # it is being written: the last number holds
                self._ahead_s = float(self._file.read_text())
        return time.time() + self._ahead_s
