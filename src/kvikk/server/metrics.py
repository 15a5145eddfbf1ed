"""Prometheus metrics, by the names that vLLM's dashboards and the routers built for it read.

Where vLLM has a figure, ours has its name and its meaning: ``vllm:kv_cache_usage_perc`` is the
share of blocks in use (cached ones are free), prefix cache figures are in tokens, each request
counted once. What vLLM has no name for begins with ``kvikk_``.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kvikk.cache.ledger.records import Cause
from kvikk.engine.requests import Output
from kvikk.engine.stats import GroupStats, Stats
from kvikk.server.tier_metrics import tier_metrics

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300)
_TOKEN_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_TOKENS = tuple(2**power for power in range(18))


class Metrics:
    """One model's metrics, in a registry of their own."""

    def __init__(
        self,
        model: str,
        stats: Callable[[], Stats],
        prompt_tokens: Callable[[], Mapping[Cause, int]],
        traces: Mapping[str, int] | None = None,
    ) -> None:
        """Of ``model``; ``prompt_tokens`` since the start are by what became of them, and so are
        the ``traces`` for a collector, if there are any.
        """
        self._registry = CollectorRegistry()
        # A router tells by the start time whether this is still the process that it knew.
        ProcessCollector(registry=self._registry)
        self._registry.register(_EngineCollector(model, stats, prompt_tokens))
        if traces is not None:
            self._registry.register(_TraceCollector(traces))

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            whole = Histogram(name, text, ["model_name"], buckets=buckets, registry=self._registry)
            return whole.labels(model)

        self._first_token = histogram(
            "vllm:time_to_first_token_seconds", "From arrival to the first token.", _SECONDS
        )
        self._interval = histogram(
            "vllm:inter_token_latency_seconds",
            "From one output of a request to the next.",
            _TOKEN_SECONDS,
        )
        self._whole = histogram(
            "vllm:e2e_request_latency_seconds", "From arrival to the last token.", _SECONDS
        )
        self._queue = histogram(
            "vllm:request_queue_time_seconds", "From arrival to the first step.", _SECONDS
        )
        self._prefill = histogram(
            "vllm:request_prefill_time_seconds", "From the first step to a token.", _SECONDS
        )
        self._prompt = histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._answer = histogram("vllm:request_generation_tokens", "Tokens of an answer.", _TOKENS)

    def exposition(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self._registry)

    def observer(self) -> Callable[[Output], None]:
        """Watches one request's outputs, in whatever thread they come."""
        latest_s: dict[int, float] = {}  # by answer

        def observe(output: Output) -> None:
            now_s, before_s = time.monotonic(), latest_s.get(output.choice)
            if output.token_ids and not latest_s:
                self._observe_first(output)
            elif output.token_ids and before_s is not None:
                self._interval.observe(now_s - before_s)
            latest_s[output.choice] = now_s
            if output.finish_reason in ("stop", "length"):
                self._observe_finished(output)

        return observe

    def _observe_first(self, output: Output) -> None:
        timings = output.timings
        if timings.scheduled_s is not None:
            self._queue.observe(timings.scheduled_s - timings.arrived_s)
        if timings.prefill_s is not None:
            self._prefill.observe(timings.prefill_s)
        if timings.first_token_s is not None:
            self._first_token.observe(timings.first_token_s - timings.arrived_s)

    def _observe_finished(self, output: Output) -> None:
        timings = output.timings
        if output.choice == 0:  # the others have the same
            self._prompt.observe(output.usage.prompt_tokens)
        self._answer.observe(output.usage.completion_tokens)
        if timings.finished_s is not None:
            self._whole.observe(timings.finished_s - timings.arrived_s)


class _EngineCollector(Collector):
    """Reads the engine's figures when they are asked for; they cost the engine nothing."""

    def __init__(
        self,
        model: str,
        stats: Callable[[], Stats],
        prompt_tokens: Callable[[], Mapping[Cause, int]],
    ) -> None:
        self._labels = {"model_name": model}
        self._stats = stats
        self._prompt_tokens = prompt_tokens

    def collect(self) -> Iterator[Metric]:
        """All figures of this moment."""
        stats = self._stats()
        blocks = _sum_groups(stats.groups)
        yield self._gauge(
            "vllm:num_requests_running", "Requests in the batch.", stats.running_requests
        )
        yield self._gauge(
            "vllm:num_requests_waiting", "Requests in the queue.", stats.waiting_requests
        )
        yield self._gauge(
            "vllm:kv_cache_usage_perc",
            "Share of KV blocks in use, 0 to 1.",
            blocks["live"] / max(sum(blocks.values()), 1),
        )
        for name, text, value in [
            ("vllm:prefix_cache_queries", "Prompt tokens looked up.", stats.prefix_query_tokens),
            ("vllm:prefix_cache_hits", "Prompt tokens found.", stats.prefix_hit_tokens),
            ("vllm:prompt_tokens", "Prompt tokens admitted.", stats.prompt_tokens),
            ("vllm:generation_tokens", "Tokens generated.", stats.generated_tokens),
            ("vllm:num_preemptions", "Requests preempted.", stats.preemptions),
            ("vllm:spec_decode_num_drafts", "Guesses computed.", stats.drafts),
            ("vllm:spec_decode_num_draft_tokens", "Tokens guessed.", stats.drafted_tokens),
            ("vllm:spec_decode_num_accepted_tokens", "Guessed right.", stats.accepted_tokens),
            ("kvikk_computed_tokens", "Tokens given to the backend.", stats.computed_tokens),
            ("kvikk_steps", "Steps of the engine.", stats.steps),
            ("kvikk_forks", "Answers begun on another's blocks.", stats.forks),
            ("kvikk_copied_blocks", "Shared blocks copied before a write.", stats.copied_blocks),
        ]:
            yield self._counter(name, text, value)
        causes = CounterMetricFamily(
            "kvikk_prompt_tokens",
            "Prompt tokens, by what became of them: reused, or computed for a reason.",
            labels=[*self._labels, "cause"],
        )
        for cause, tokens in self._prompt_tokens().items():
            causes.add_metric([*self._labels.values(), cause.value], tokens)
        yield causes
        finished = CounterMetricFamily(
            "vllm:request_success",
            "Requests that ended, by reason.",
            labels=[*self._labels, "finished_reason"],
        )
        for reason, count in stats.finished_requests.items():
            finished.add_metric([*self._labels.values(), reason], count)
        yield finished
        states = GaugeMetricFamily(
            "kvikk_blocks",
            "KV blocks, by group and state.",
            labels=["model_name", "group", "state"],
        )
        for index, group in enumerate(stats.groups):
            for state, count in _sum_groups([group]).items():
                states.add_metric([*self._labels.values(), str(index), state], count)
        yield states
        yield from tier_metrics(stats.tiering, self._labels)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=[*self._labels])
        family.add_metric([*self._labels.values()], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=[*self._labels])
        family.add_metric([*self._labels.values()], value)
        return family


class _TraceCollector(Collector):
    """How many requests' spans reached the collector of traces, and how many did not."""

    def __init__(self, traces: Mapping[str, int]) -> None:
        self._traces = traces

    def collect(self) -> Iterator[Metric]:
        """The counts of this moment."""
        counter = CounterMetricFamily(
            "kvikk_traces",
            "Requests whose spans were sent, refused by the collector, or dropped unsent.",
            labels=["outcome"],
        )
        for outcome, count in self._traces.items():
            counter.add_metric([outcome], count)
        yield counter


def _sum_groups(groups: Sequence[GroupStats]) -> dict[str, int]:
    return {
        "live": sum(group.live_blocks for group in groups),
        "cached": sum(group.cached_blocks for group in groups),
        "empty": sum(group.empty_blocks for group in groups),
    }
