"""Whether a tier can be used, what went wrong, and saying so once."""

import logging
import time
from collections.abc import Callable, Mapping
from threading import Lock

logger = logging.getLogger(__name__)

FIRST_REST_S = 1.0
LONGEST_REST_S = 30.0


class Health:
    """One way to use one tier; after a failure it rests, twice as long each time.

    Only the first failure and the recovery are logged. Safe to use from several threads.
    """

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        """``what`` is used, for the log: "writing to /cache", for example."""
        self._what = what
        self._clock = clock
        self._lock = Lock()
        self._rest_s = 0.0
        self._resumes_s = 0.0
        self._trouble: str | None = None
        self.failures = 0

    @property
    def usable(self) -> bool:
        """Whether it should be tried now."""
        return self._trouble is None or self._clock() >= self._resumes_s

    @property
    def trouble(self) -> str | None:
        """What went wrong last, until it works again."""
        return self._trouble

    def failed(self, error: Exception) -> None:
        """It did not work: leave it alone for a while."""
        with self._lock:
            self.failures += 1
            first = self._trouble is None
            self._trouble = f"{type(error).__name__}: {error}"
            self._rest_s = min(max(FIRST_REST_S, 2 * self._rest_s), LONGEST_REST_S)
            self._resumes_s = self._clock() + self._rest_s
        if first:
            logger.warning("%s fails; going on without (%s)", self._what, self._trouble)

    def worked(self) -> None:
        """It did."""
        if self._trouble is None:
            return
        with self._lock:
            recovered = self._trouble is not None
            self._trouble, self._rest_s = None, 0.0
        if recovered:
            logger.warning("%s works again", self._what)


def log_unfit(place: str, unfit: Mapping[bytes, str]) -> None:
    """One line for all that a reading found unusable."""
    if unfit:
        key, reason = next(iter(unfit.items()))
        logger.warning(
            "%s: %d blocks are not used; %s: %s", place, len(unfit), key.hex()[:16], reason
        )
