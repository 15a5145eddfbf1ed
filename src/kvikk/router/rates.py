"""How fast requests come, of late."""

import math

# Queues of long prompts form and go within a minute or so.
_HORIZON_S = 60.0


class ArrivalRate:
    """Requests per second, each counting less by the e-th part every ``horizon_s``."""

    def __init__(self, horizon_s: float = _HORIZON_S) -> None:
        self._horizon_s = horizon_s
        self._count = 0.0
        self._first_s: float | None = None
        self._last_s = 0.0

    def arrived(self, now_s: float) -> float:
        """Count one more at ``now_s``, never earlier than the last, and return the rate."""
        if self._first_s is None:
            self._first_s = self._last_s = now_s
        self._count = self._count * math.exp((self._last_s - now_s) / self._horizon_s) + 1
        self._last_s = now_s
        # So much time weighs in the count; a first second is too short to say anything from.
        elapsed_s = max(now_s - self._first_s, 1.0)
        return self._count / (self._horizon_s * -math.expm1(-elapsed_s / self._horizon_s))
