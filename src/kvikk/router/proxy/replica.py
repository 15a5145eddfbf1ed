"""One replica: where it is, whether it may be used, and what it has to do."""

from collections import Counter

from kvikk.router.load import Load
from kvikk.router.proxy.breaker import Breaker
from kvikk.router.proxy.pool import Pool
from kvikk.router.records import ReplicaView


class Replica:
    """A replica of the fleet. Health is what checks say of it, load is what it was given.

    ``models`` is None as long as nobody said what it serves; an empty set stands for anything.
    ``limit`` is how many requests it may have at once, 0 for any. ``source`` says who named it:
    ``command``, ``admin``, ``file`` or ``dns``.
    """

    def __init__(self, view: ReplicaView, pool: Pool, limit: int, source: str) -> None:
        self.view = view
        self.pool = pool
        self.source = source
        self.breaker = Breaker()
        self.models: frozenset[str] | None = None
        self.is_healthy = False
        self.is_draining = False
        self.problem = "not checked yet"
        self.restarts = 0
        self.requests = 0
        self.errors: Counter[str] = Counter()
        self.limit = limit
        self.update()

    @property
    def id(self) -> str:
        """Its name in headers, metrics and admin calls."""
        return self.view.id

    def update(self) -> None:
        """Settle whether it is eligible, after anything that this depends on has changed."""
        self.view.eligible = (
            self.is_healthy
            and not self.is_draining
            and self.breaker.admits
            and (self.limit == 0 or self.view.running_requests < self.limit)
        )

    def serves(self, model: str) -> bool:
        """Whether a request for ``model`` ("" for one that names none) may go there."""
        return self.models is not None and (not self.models or not model or model in self.models)


class ReplicaLoad(Load):
    """The load of one request, and the replica's eligibility with it.

    It belongs to whoever took it, and is given back to the very object it was taken from, once.
    """

    __slots__ = ("_is_trial", "_replica")

    def __init__(self, replica: Replica, prompt_tokens: int, hit_tokens: int) -> None:
        super().__init__(replica.view, prompt_tokens, hit_tokens)
        self._replica: Replica | None = replica
        replica.requests += 1
        self._is_trial = replica.breaker.started()
        if self._is_trial or replica.limit:  # else nothing has changed
            replica.update()

    def release(self) -> None:
        """The request has ended, however."""
        replica, self._replica = self._replica, None
        if replica is None:
            return
        super().release()
        if self._is_trial:
            replica.breaker.undecided()
        replica.update()
