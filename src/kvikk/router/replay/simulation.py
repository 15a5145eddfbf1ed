"""A fleet under a trace: the router's own policies and index, caches without tensors, a clock.

A replica computes prompts one after the other at a stated speed, and the time to first token is the
wait for its turn and for the tokens that its cache did not have. A prompt's blocks are there for
the next one from its arrival on. An answer occupies a replica's count of requests until its last
token, but not its prefill.
"""

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from kvikk.cache.eviction.base import Residents, leading_blocks
from kvikk.router.deciding import decide
from kvikk.router.holdings.index import PrefixIndex
from kvikk.router.rates import ArrivalRate
from kvikk.router.records import Policy, ReplicaView, RoutedRequest
from kvikk.router.replay.trace import Trace, TracedRequest

Progress = Callable[[int], None]
"""Told how many requests have been done since it was told last."""

# How often progress is told.
_STEP = 1000


@dataclass(frozen=True)
class Rates:
    """What replicas can do: prompt tokens computed per second, seconds per output token."""

    prefill_tokens_per_s: float
    decode_token_s: float


@dataclass
class Tally:
    """What came of a trace. ``ttft_s`` by request; ``computed_tokens`` by replica."""

    computed_tokens: list[int]
    hit_tokens: int = 0
    elsewhere_tokens: int = 0
    ttft_s: list[float] = field(default_factory=list)


def simulate(
    trace: Trace,
    policy: Policy,
    caches: list[Residents],
    rates: Rates,
    progress: Progress = lambda done: None,
) -> Tally:
    """Send a trace to as many replicas as there are (empty) caches."""
    index = PrefixIndex(stride=1)  # not every eviction policy keeps chains whole
    fleet = [
        ReplicaView(str(slot), slot, prefill_tokens_per_s=rates.prefill_tokens_per_s)
        for slot in range(len(caches))
    ]
    free_at_s = [0.0] * len(caches)
    ends: list[tuple[float, int, int]] = []
    homes: dict[Hashable, int] = {}
    arrivals = ArrivalRate()
    tally = Tally([0] * len(caches))
    for turn, traced in enumerate(trace.requests):
        now_s, blocks = traced.arrival_s, traced.blocks
        _end(ends, now_s, fleet)
        for view, free_s in zip(fleet, free_at_s, strict=True):
            view.waiting_tokens = max(0.0, free_s - now_s) * rates.prefill_tokens_per_s
        hit_blocks = index.hit_blocks(blocks, len(caches))
        prefix = _prefix(traced)
        session = prefix or None if traced.session is None else traced.session
        request = RoutedRequest(
            request_id="",
            model="",
            tenant="",
            turn=turn,
            prompt_tokens=traced.prompt_tokens,
            hit_tokens=[trace.hit_tokens(traced, count) for count in hit_blocks],
            prefix=prefix,
            home=homes.get(session),
            requests_per_s=arrivals.arrived(now_s),
            key=traced.key,
        )
        decision = decide(policy, request, fleet)
        slot = decision.replica.slot
        if session is not None:
            homes[session] = slot
        computed = traced.prompt_tokens - decision.hit_tokens
        free_at_s[slot] = max(free_at_s[slot], now_s) + computed / rates.prefill_tokens_per_s
        index.add(slot, blocks[hit_blocks[slot] :])
        index.remove(slot, caches[slot].use(blocks, now_s))
        end_s = free_at_s[slot] + traced.output_tokens * rates.decode_token_s
        _begin(ends, end_s, traced, fleet[slot])
        tally.ttft_s.append(free_at_s[slot] - now_s)
        tally.hit_tokens += decision.hit_tokens
        tally.elsewhere_tokens += decision.elsewhere_tokens
        tally.computed_tokens[slot] += computed
        if turn % _STEP == _STEP - 1:
            progress(_STEP)
    progress(len(trace.requests) % _STEP)
    return tally


def pooled(
    trace: Trace,
    cache: Residents,
    replicas: int,
    rates: Rates,
    progress: Progress = lambda done: None,
) -> Tally:
    """The same replicas with one cache for all; each prompt goes where the wait is least."""
    free_at_s = [0.0] * replicas
    tally = Tally([0] * replicas)
    for turn, traced in enumerate(trace.requests):
        hit = trace.hit_tokens(traced, leading_blocks(cache, traced.blocks))
        cache.use(traced.blocks, traced.arrival_s)
        slot = min(range(replicas), key=lambda one: (free_at_s[one], (one - turn) % replicas))
        computed = traced.prompt_tokens - hit
        start_s = max(free_at_s[slot], traced.arrival_s)
        free_at_s[slot] = start_s + computed / rates.prefill_tokens_per_s
        tally.ttft_s.append(free_at_s[slot] - traced.arrival_s)
        tally.hit_tokens += hit
        tally.computed_tokens[slot] += computed
        if turn % _STEP == _STEP - 1:
            progress(_STEP)
    progress(len(trace.requests) % _STEP)
    return tally


def _prefix(traced: TracedRequest) -> bytes:
    """A name of the first two blocks: the first one alone is often every session's."""
    if not traced.blocks:
        return b""
    block = traced.blocks[:2][-1]
    return block if isinstance(block, bytes) else hash(block).to_bytes(8, "little", signed=True)


def _begin(
    ends: list[tuple[float, int, int]], end_s: float, traced: TracedRequest, view: ReplicaView
) -> None:
    tokens = traced.prompt_tokens + traced.output_tokens
    view.running_requests += 1
    view.running_tokens += tokens
    heapq.heappush(ends, (end_s, view.slot, tokens))


def _end(ends: list[tuple[float, int, int]], now_s: float, fleet: list[ReplicaView]) -> None:
    while ends and ends[0][0] <= now_s:
        _, slot, tokens = heapq.heappop(ends)
        fleet[slot].running_requests -= 1
        fleet[slot].running_tokens -= tokens
