"""The least of several replicas, where equals take turns: else the first would get every tie."""

from collections.abc import Callable, Sequence
from typing import Any

from kvikk.router.records import ReplicaView


def least(
    replicas: Sequence[ReplicaView], turn: int, cost: Callable[[ReplicaView], Any]
) -> ReplicaView:
    """The replica of least ``cost``; among equals the first from place ``turn`` on."""
    first = turn % len(replicas)
    return min([*replicas[first:], *replicas[:first]], key=cost)
