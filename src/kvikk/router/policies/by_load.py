"""Policies that look at load alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvikk.engine.chance import uniform
from kvikk.router.policies.ties import least
from kvikk.router.records import Choice, ReplicaView, RoutedRequest


@dataclass(frozen=True)
class LeastRequests:
    """The fewest requests in flight, which other proxies call least connections."""

    name: str = "least_requests"
    looks_at_hits: bool = False
    looks_at_prompt: bool = False

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> Choice:
        """See ``Policy.choose``."""
        return least(replicas, request.turn, lambda one: one.running_requests), "load"


@dataclass(frozen=True)
class LeastTokens:
    """The shortest wait: the fewest prompt tokens still to be computed, at the replica's speed."""

    name: str = "least_tokens"
    looks_at_hits: bool = False
    looks_at_prompt: bool = False

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> Choice:
        """See ``Policy.choose``."""
        return least(replicas, request.turn, waits), "load"


@dataclass(frozen=True)
class PowerOfTwo:
    """Of two drawn by chance the one with the shorter wait (Mitzenmacher, 2001)."""

    name: str = "power_of_two"
    seed: int = 0
    looks_at_hits: bool = False
    looks_at_prompt: bool = False

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> Choice:
        """See ``Policy.choose``."""
        count = len(replicas)
        first = int(uniform(self.seed, 2 * request.turn) * count)
        # Any of the others, each with the same chance.
        step = 1 + int(uniform(self.seed, 2 * request.turn + 1) * (count - 1))
        drawn = [replicas[first], replicas[(first + step) % count]]
        return least(drawn, 0, waits), "load"


def waits(replica: ReplicaView) -> tuple[float, int]:
    """How long a new prompt waits there; between equals, how many tokens it has in flight."""
    return replica.waiting_tokens / replica.prefill_tokens_per_s, replica.running_tokens
