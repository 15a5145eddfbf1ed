"""The fleet's books without being in the way: replicas' KV events and metrics, and nothing sent.

Events say what each replica holds, what it stores and removes; of what it stores, what it had
removed before and what another one holds at that moment. Metrics say how much of the prompts it
found. Together: what is reused, what is lost to eviction, and what to scattering.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx

from kvikk.router.holdings.index import PrefixIndex
from kvikk.router.holdings.subscription import Subscription
from kvikk.router.holdings.told import Told
from kvikk.router.placement.options import EventSource
from kvikk.router.placement.prompts import told_root

_METRICS_INTERVAL_S = 1.0
_SAMPLE = re.compile(r"^(vllm:[a-z_]+)(?:\{[^}]*\})? ([0-9.eE+-]+)", re.MULTILINE)


@dataclass(frozen=True)
class ReplicaFigures:
    """What is seen of one replica. Blocks since the watch began to hear it, or what was repeated.

    Of ``query_tokens`` prompt tokens ``hit_tokens`` were found since its start, by its metrics.
    ``problem`` says what keeps it from being seen.
    """

    url: str
    held_blocks: int
    stored_blocks: int
    again_blocks: int
    scattered_blocks: int
    removed_blocks: int
    block_tokens: int
    query_tokens: float
    hit_tokens: float
    running_requests: float
    waiting_requests: float
    memory_share: float
    gaps: int
    problem: str


@dataclass(frozen=True)
class FleetFigures:
    """All replicas, and the blocks that are there at all, and more than once."""

    replicas: tuple[ReplicaFigures, ...]
    distinct_blocks: int
    shared_blocks: int

    @property
    def hit_rate(self) -> float:
        """Of all prompt tokens, those found."""
        queried = sum(one.query_tokens for one in self.replicas)
        return sum(one.hit_tokens for one in self.replicas) / queried if queried else 0.0


class Watch:
    """Listens to replicas; ``sources`` has a URL's KV events, None where there are none."""

    def __init__(self, sources: Mapping[str, EventSource | None], api_key: str | None) -> None:
        self._index = PrefixIndex()
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._seen = [
            _Seen(slot, url, source, self._index, headers)
            for slot, (url, source) in enumerate(sources.items())
        ]

    def figures(self) -> FleetFigures:
        """What is known now."""
        return FleetFigures(
            tuple(one.figures() for one in self._seen),
            len(self._index),
            self._index.num_shared(),
        )

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for one in self._seen:
                tasks.create_task(one.poll())
                if one.subscription is not None:
                    tasks.create_task(one.subscription.run())


class _Seen:
    """One replica."""

    def __init__(
        self,
        slot: int,
        url: str,
        source: EventSource | None,
        index: PrefixIndex,
        headers: Mapping[str, str],
    ) -> None:
        self._url = url
        self._headers = headers
        self._told = Told(slot, index, told_root)
        self._metrics: dict[str, float] = {}
        self._problem = "not asked yet"
        self.subscription = source and Subscription(
            source.endpoint, source.replay, hear=self._told.hear, forget=self._told.clear
        )

    def figures(self) -> ReplicaFigures:
        told, metrics = self._told, self._metrics
        return ReplicaFigures(
            self._url,
            len(told),
            told.stored_blocks,
            told.again_blocks,
            told.scattered_blocks,
            told.removed_blocks,
            max(told.block_sizes, default=0),
            metrics.get("vllm:prefix_cache_queries_total", 0.0),
            metrics.get("vllm:prefix_cache_hits_total", 0.0),
            metrics.get("vllm:num_requests_running", 0.0),
            metrics.get("vllm:num_requests_waiting", 0.0),
            metrics.get("vllm:kv_cache_usage_perc", 0.0),
            0 if self.subscription is None else self.subscription.gaps,
            self._problem,
        )

    async def poll(self) -> None:
        """Ask for metrics every second."""
        async with httpx.AsyncClient(timeout=5, trust_env=False, headers=self._headers) as http:
            while True:
                try:
                    reply = await http.get(f"{self._url}/metrics")
                    self._problem = "" if reply.status_code == 200 else f"{reply.status_code}"
                    self._metrics = _sums(reply.text) if reply.status_code == 200 else {}
                except (httpx.HTTPError, httpx.InvalidURL) as error:
                    self._problem = type(error).__name__
                await asyncio.sleep(_METRICS_INTERVAL_S)


def _sums(exposition: str) -> dict[str, float]:
    """Each metric, summed over its labels."""
    sums: dict[str, float] = {}
    for name, value in _SAMPLE.findall(exposition):
        sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def watched_sources(
    urls: Sequence[str], events: Mapping[str, EventSource]
) -> dict[str, EventSource | None]:
    """Each replica's URL and where its events are, if anybody said."""
    return {url.rstrip("/"): events.get(url.rstrip("/")) for url in urls}
