"""How many requests each tenant may have at once, so that one cannot take all places."""

from collections import Counter
from threading import Lock

from kvikk.errors import BusyError


class TenantPlaces:
    """Counts each tenant's requests, running and waiting; ``most`` None counts to no end.

    Safe to share between threads.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._taken: Counter[str] = Counter()
        self._lock = Lock()

    def take(self, tenant: str) -> None:
        """Count one request more. Raises BusyError where the tenant has as many as it may."""
        with self._lock:
            if self._most is not None and self._taken[tenant] >= self._most:
                raise BusyError(
                    f"this key has {self._taken[tenant]} requests running or waiting, which is its "
                    "limit; try again soon"
                )
            self._taken[tenant] += 1

    def give_back(self, tenant: str) -> None:
        """Count one less."""
        with self._lock:
            self._taken[tenant] -= 1
            if not self._taken[tenant]:
                del self._taken[tenant]
