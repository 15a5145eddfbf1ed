"""A circuit breaker: a replica that keeps failing is left alone, then tried with one request."""

FAILURES = 5
FIRST_REST_S = 1.0
LONGEST_REST_S = 30.0


class Breaker:
    """Closed while all is well; open after failures in a row; half open to try with one request.

    The rest doubles each time the trial fails. It looks at no clock of its own: ``tick`` tells it.
    """

    __slots__ = ("_failures", "_limit", "_open_until_s", "_rest_s", "_trial")

    def __init__(self, failures: int = FAILURES) -> None:
        self._limit = failures
        self._failures = 0
        self._rest_s = FIRST_REST_S
        self._open_until_s: float | None = None
        self._trial = "none"  # none, wanted, running

    @property
    def admits(self) -> bool:
        """Whether a request may be sent."""
        return self._open_until_s is None or self._trial == "wanted"

    @property
    def state(self) -> str:
        """``closed``, ``open`` or ``half-open``."""
        if self._open_until_s is None:
            return "closed"
        return "open" if self._trial == "none" else "half-open"

    def started(self) -> bool:
        """A request is on its way; if the breaker is half open, that is the trial: then True."""
        if self._trial != "wanted":
            return False
        self._trial = "running"
        return True

    def succeeded(self) -> None:
        """A request was answered."""
        self._failures = 0
        if self._open_until_s is not None and self._trial != "none":
            self._open_until_s, self._trial, self._rest_s = None, "none", FIRST_REST_S

    def failed(self, now_s: float) -> None:
        """A request failed by the replica's fault."""
        self._failures += 1
        if self._open_until_s is None:
            if self._failures >= self._limit:
                self._open_until_s = now_s + self._rest_s
        elif self._trial == "running":
            self._rest_s = min(2 * self._rest_s, LONGEST_REST_S)
            self._open_until_s, self._trial = now_s + self._rest_s, "none"

    def undecided(self) -> None:
        """The trial ended without a verdict: whoever asked has gone. Another may be it."""
        if self._trial == "running":
            self._trial = "wanted"

    def tick(self, now_s: float) -> None:
        """Time passes: after its rest a replica may be tried."""
        if self._open_until_s is not None and self._trial == "none" and now_s >= self._open_until_s:
            self._trial = "wanted"

    def reset(self) -> None:
        """Forget all failures: it is another process now."""
        self._failures, self._rest_s = 0, FIRST_REST_S
        self._open_until_s, self._trial = None, "none"
