"""The longest prefix, within what load allows."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvikk.router.policies.by_load import waits
from kvikk.router.policies.ties import least
from kvikk.router.records import Choice, ReplicaView, RoutedRequest


@dataclass(frozen=True)
class LongestPrefix:
    """Of the nearly least loaded replicas the one that holds most of the prompt.

    Nearly: not more than ``slack`` of this prompt's own work behind the least loaded. A prompt that
    none of them knows goes by load.
    """

    name: str = "longest_prefix"
    slack: float = 1.0
    looks_at_hits: bool = True
    looks_at_prompt: bool = True

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> Choice:
        """See ``Policy.choose``."""
        shortest = min(one.wait_s for one in replicas)
        own = self.slack * request.prompt_tokens
        near = [one for one in replicas if one.wait_s <= shortest + own / one.prefill_tokens_per_s]
        hits = request.hit_tokens
        longest = max(hits[one.slot] for one in near)
        if longest == 0:
            return least(near, request.turn, waits), "load"
        holders = [one for one in near if hits[one.slot] == longest]
        return least(holders, request.turn, waits), "prefix"
