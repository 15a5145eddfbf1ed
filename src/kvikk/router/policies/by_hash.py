"""Policies that send the same caller or the same beginning to the same replica."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

from kvikk.router.policies.by_load import waits
from kvikk.router.policies.ties import least
from kvikk.router.records import Choice, ReplicaView, RoutedRequest

_MASK = 2**64 - 1


@dataclass(frozen=True)
class ConsistentHash:
    """By the prompt's first blocks, as long as that replica is not too busy.

    Each prefix ranks the replicas in an order of its own (rendezvous: Thaler and Ravishankar,
    1998), and the first takes it whose wait is at most ``patience`` of this prompt's own work
    longer than the shortest. Needs no state: any number of routers agree, and a replica that joins
    or leaves moves none but its own prefixes.

    A bound on each one's share (1.25 times the mean: Mirrokni, Thorup and Zadimoghaddam, 2018) is
    the usual one. With few requests at a time it drives away every second one of a prefix, and on
    the traces it waits a tenth to a half longer than this.
    """

    name: str = "consistent_hash"
    patience: float = 2.0
    looks_at_hits: bool = False
    looks_at_prompt: bool = True

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> Choice:
        """See ``Policy.choose``."""
        if not request.prefix:
            return least(replicas, request.turn, waits), "load"
        ranked = rendezvous(request.prefix, replicas)
        own_s = request.prompt_tokens / ranked[0].prefill_tokens_per_s
        most_s = min(one.wait_s for one in ranked) + self.patience * own_s
        taken = next(one for one in ranked if one.wait_s <= most_s)
        return taken, "hash" if taken is ranked[0] else "load"


@dataclass(frozen=True)
class Affinity:
    """To the replica that took the session's last request; a new session by load."""

    name: str = "affinity"
    looks_at_hits: bool = False
    looks_at_prompt: bool = True

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> Choice:
        """See ``Policy.choose``."""
        for replica in replicas:
            if replica.slot == request.home:
                return replica, "affinity"
        return least(replicas, request.turn, waits), "load"


def rendezvous(prefix: bytes, replicas: Sequence[ReplicaView]) -> list[ReplicaView]:
    """The replicas in this prefix's own order, whatever order they come in."""
    number = int.from_bytes(prefix[:8], "little")
    return sorted(replicas, key=lambda one: _score(number, _number(one.id)), reverse=True)


@lru_cache(maxsize=4096)
def _number(replica_id: str) -> int:
    return int.from_bytes(sha256(replica_id.encode()).digest()[:8], "little")


def _score(prefix: int, replica: int) -> int:
    """Both mixed into 64 bits (the finaliser of SplitMix64)."""
    value = prefix ^ replica
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
