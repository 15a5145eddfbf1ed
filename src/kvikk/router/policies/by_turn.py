"""Policies that look at nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvikk.engine.chance import uniform
from kvikk.router.records import Choice, ReplicaView, RoutedRequest


@dataclass(frozen=True)
class RoundRobin:
    """One after the other."""

    name: str = "round_robin"
    looks_at_hits: bool = False
    looks_at_prompt: bool = False

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> Choice:
        """See ``Policy.choose``."""
        return replicas[request.turn % len(replicas)], "turn"


@dataclass(frozen=True)
class RandomChoice:
    """Any, each with the same chance."""

    name: str = "random"
    seed: int = 0
    looks_at_hits: bool = False
    looks_at_prompt: bool = False

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> Choice:
        """See ``Policy.choose``."""
        drawn = int(uniform(self.seed, request.turn) * len(replicas))
        return replicas[drawn], "chance"
