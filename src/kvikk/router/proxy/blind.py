"""A placement that looks at no content: tokens are guessed from bytes, nobody holds anything."""

from collections.abc import Collection, Sequence

from kvikk.router.proxy.placement import Asked, Outcome
from kvikk.router.records import Decision, Policy, ReplicaView, RoutedRequest, decide

_BYTES_PER_TOKEN = 4


class BlindPlacement:
    """Asks a policy, and learns nothing."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._hits: list[int] = []
        self._turn = 0

    def joined(self, view: ReplicaView, url: str) -> None:
        """Make room for its slot."""
        self._hits = [0] * max(len(self._hits), view.slot + 1)

    def left(self, slot: int) -> None:
        """Nothing is kept of it."""

    def forgotten(self, slot: int, because: str) -> None:
        """Nothing was known of it."""

    def read(self, asked: Asked) -> RoutedRequest:
        """The body's size, and whose turn it is."""
        self._turn += 1
        return RoutedRequest(
            asked.id,
            asked.model,
            asked.tenant,
            self._turn,
            len(asked.body) // _BYTES_PER_TOKEN,
            self._hits,
        )

    def decide(
        self, request: RoutedRequest, replicas: Sequence[ReplicaView], tried: Collection[int]
    ) -> Decision:
        """As the policy says."""
        return decide(self._policy, request, replicas, tried)

    def answered(self, request: RoutedRequest, decision: Decision, outcome: Outcome) -> None:
        """Nothing follows from it."""

    def metrics(self) -> str:
        """None."""
        return ""

    def page(self, path: str) -> tuple[str, bytes] | None:
        """None."""
        return None

    async def run(self) -> None:
        """Nothing to do."""
