"""How fast a tier gives blocks back and how fast prompts are computed, both as measured here.

A load is worth it where it takes less time than computing the same tokens would:

    latency + bytes / bandwidth   <   tokens / (tokens computed a second)

What is not known is tried: that is how it gets known. A figure that has not been confirmed for
``FORGET_S`` counts as unknown, so that a tier that was slow once gets another chance.
"""

import time
from collections.abc import Callable

FORGET_S = 60.0
_WEIGHT = 0.3  # of the latest measurement
# Less is over before a clock has measured it.
_LEAST_S = 1e-6


class Average:
    """A moving average, and when it was last fed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._value: float | None = None
        self._fed_s = 0.0

    def feed(self, value: float) -> None:
        """One more measurement; the first after a long while counts alone."""
        old = self.value
        self._value = value if old is None else old + _WEIGHT * (value - old)
        self._fed_s = self._clock()

    @property
    def latest(self) -> float | None:
        """The average, however old; None if there is none."""
        return self._value

    @property
    def value(self) -> float | None:
        """The average; None where it is unknown or too old."""
        return None if self._clock() - self._fed_s > FORGET_S else self._value


class TierSpeed:
    """Latency of a question and bandwidth of an answer of one tier."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.latency_s = Average(clock)
        self.bytes_per_s = Average(clock)

    def asked(self, seconds: float) -> None:
        """A question without blocks took so long."""
        self.latency_s.feed(seconds)

    def loaded(self, num_bytes: int, seconds: float) -> None:
        """So many bytes of blocks came in so many seconds."""
        self.bytes_per_s.feed(num_bytes / max(seconds, _LEAST_S))

    def seconds(self, num_bytes: int) -> float:
        """What loading would take; 0 as far as it is unknown."""
        if num_bytes == 0:
            return 0.0
        bandwidth = self.bytes_per_s.value
        return (self.latency_s.value or 0.0) + (num_bytes / bandwidth if bandwidth else 0.0)
