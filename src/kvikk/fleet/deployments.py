"""The fleet as an application of Ray Serve: an ingress in front of engines.

HTTP ─► Serve's proxy ─► Ingress ── PolicyRouter ──► Engine   (one a replica: kvikk's own
                         keys, account │ index        Engine    engine and server)
                                       └◄─ KV events ─ Engine
"""

import asyncio
from typing import Any

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from kvikk.fleet.attempts import HttpRequest
from kvikk.fleet.ledger.records import Ask, Batch
from kvikk.fleet.options import FleetOptions
from kvikk.fleet.scaling import WAITING_TOKENS

INGRESS, ENGINES = "ingress", "engines"
_INGRESS_CPUS = 0.25
# As long as a replica that leaves may take for the answers that it has begun.
_WAIT_LOOP_S = 1.0


class Engine:
    """A replica's process: builds what serves, and passes on what Serve asks."""

    async def __init__(self, options: FleetOptions) -> None:  # type: ignore[misc]  # Serve awaits it
        # Here and not at the top: the engine is not needed where the ingress runs.
        from kvikk.fleet.replica import Replica

        replica_id = serve.get_replica_context().replica_id.unique_id
        node = ray.get_runtime_context().get_node_id()
        self._replica = await asyncio.to_thread(
            Replica, options, replica_id, ray.util.get_node_ip_address(), node
        )
        await self._replica.start()

    async def answer(self, attempt: str, request: HttpRequest, prompt_tokens: int) -> Any:
        """See ``Replica.answer``."""
        async for frame in self._replica.answer(attempt, request, prompt_tokens):
            yield frame

    async def figures(self) -> dict[str, Any]:
        """See ``Replica.figures``."""
        return self._replica.figures()

    async def stop(self, attempt: str) -> None:
        """See ``Replica.stop``."""
        await self._replica.stop(attempt)

    async def collect(self, ask: Ask) -> Batch:
        """See ``Replica.collect``."""
        return await self._replica.collect(ask)

    def record_replica_metadata(self) -> dict[str, Any]:
        """Who this is; Serve tells it to every request router, once."""
        return self._replica.member.to_metadata()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """What the number of replicas goes by."""
        return {WAITING_TOKENS: float(self._replica.waiting_tokens())}

    def check_health(self) -> None:
        """See ``Replica.check``."""
        self._replica.check()

    async def __del__(self) -> None:
        if hasattr(self, "_replica"):
            await self._replica.close()


class IngressDeployment:
    """The ingress's process."""

    def __init__(self, options: FleetOptions, engines: Any) -> None:
        self._options = options
        self._engines = engines

    def __serve_build_asgi_app__(self) -> Any:
        """The application that Serve's proxy calls."""
        from kvikk.fleet.ingress import Ingress
        from kvikk.server.keys import ApiKeys, KeyGate

        server = self._options.server
        name = serve.get_replica_context().app_name
        node = ray.get_runtime_context().get_node_id()
        ingress = Ingress(self._options, name, self._engines, node)
        return KeyGate(ingress, ApiKeys(server.api_keys, server.operator_key))


def application(options: FleetOptions) -> serve.Application:
    """What ``serve.run`` takes: ``serve.run(application(options), name=options.name)``."""
    bounds, engine = options.replicas, options.server.engine
    engines = serve.deployment(
        Engine,
        name=ENGINES,
        ray_actor_options={"num_cpus": bounds.cpus, "num_gpus": bounds.gpus},
        max_replicas_per_node=bounds.per_node,
        # All that the engine takes; what is more waits at the ingress, which chooses later.
        max_ongoing_requests=engine.max_running + engine.max_queue,
        max_queued_requests=options.most_waiting,
        autoscaling_config=AutoscalingConfig(
            min_replicas=bounds.least,
            max_replicas=bounds.most,
            look_back_period_s=bounds.window_s,
            upscale_delay_s=bounds.upscale_delay_s,
            downscale_delay_s=bounds.downscale_delay_s,
            policy=AutoscalingPolicy(
                policy_function="kvikk.fleet.scaling:WaitingTokens",
                policy_kwargs={"target_tokens": bounds.waiting_tokens},
            ),
        ),
        request_router_config=RequestRouterConfig(
            request_router_class="kvikk.fleet.routing:PolicyRouter",
            request_router_kwargs={"policy": options.policy, "model": engine.model},
        ),
        graceful_shutdown_wait_loop_s=_WAIT_LOOP_S,
        graceful_shutdown_timeout_s=options.server.drain_s,
    )
    ingress = serve.deployment(
        serve.ingress()(IngressDeployment),
        name=INGRESS,
        num_replicas=1,
        ray_actor_options={"num_cpus": _INGRESS_CPUS},
        max_ongoing_requests=max(100, options.most_waiting * 2),
    )
    return ingress.bind(options, engines.bind(options))
