"""The router's policies as a request router of Ray Serve.

Serve ships this module by value to whoever holds a handle, so it holds nothing itself: what is
known is in ``members``, of which each process has one for an application.
"""

import asyncio
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from kvikk.fleet.attempts import Attempt
from kvikk.fleet.members import Member, Members, open_members
from kvikk.fleet.text_side import placement_options


class PolicyRouter(RequestRouter):  # type: ignore[misc]
    """Orders replicas as ``kvikk route`` would choose them."""

    def initialize_state(self, **kwargs: Any) -> None:
        """``policy`` and ``model``: of ``RequestRouterConfig.request_router_kwargs``."""
        self._members: Members = open_members(self.app_name, placement_options(**kwargs))
        self._task: asyncio.Task[None] | None = None
        self._follow()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Serve has started or ended some."""
        super().update_replicas(replicas)
        if self._task is None:
            self._members.loop = self._event_loop
            self._task = self._event_loop.create_task(self._members.placement.run())
        self._follow()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """This one is gone before Serve's controller has said so."""
        super().on_replica_actor_died(replica_id)
        self._members.remove(replica_id.unique_id)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The replicas by rank, best first. Never raises: Serve would let the request hang."""
        if pending_request is None or not pending_request.args:
            return [candidate_replicas]
        # Otherwise Serve would ask again at once, and again, where all are full.
        pending_request.routing_context.should_backoff = True
        attempt = pending_request.args[0]
        if not isinstance(attempt, Attempt):
            return [candidate_replicas]
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        order = self._members.order(attempt, by_id)
        return [[by_id[name] for name in rank] for rank in order]

    def _follow(self) -> None:
        self._members.update(
            [
                Member.from_metadata(replica.replica_id.unique_id, replica.replica_metadata)
                for replica in self.curr_replicas.values()
            ]
        )
