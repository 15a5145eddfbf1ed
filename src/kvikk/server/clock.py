"""The server's clock for lifetimes and bills, which tests can put forward."""

import time
from contextlib import suppress
from pathlib import Path

from kvikk.errors import ModelError

# Bills have days: beyond these a calendar ends before a float does.
_YEAR_3000_S = 32_503_680_000.0


class Clock:
    """Seconds since 1970, and those that stand in ``file``, if there is one, on top.

    The file holds one number and is read every time. What cannot be read as one, or leads to no day
    of a calendar, is ignored later on, and a ModelError at first.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._ahead_s = 0.0
        if file is None:
            return
        try:
            self._ahead_s = _read(file)
        except OSError as error:
            raise ModelError(
                f"the clock file {file} cannot be read: {error.strerror or error}"
            ) from None
        except ValueError:
            raise ModelError(
                f"the clock file {file} holds no number of seconds that leads to a day from 1970 "
                "to 2999; expected seconds to add, such as 0"
            ) from None

    def __call__(self) -> float:
        """The time now."""
        if self._file is not None:
            with suppress(OSError, ValueError):  # it is being written: the last number holds
                self._ahead_s = _read(self._file)
        return time.time() + self._ahead_s


def _read(file: Path) -> float:
    """Seconds to add. Raises OSError, and ValueError for what is none or leads to no day."""
    ahead_s = float(file.read_text())
    if not 0 <= time.time() + ahead_s < _YEAR_3000_S:  # what is not a number is not in there either
        raise ValueError("leads to no day from 1970 to 2999")
    return ahead_s
