"""``kvikk replay``: every combination that was asked for, and the bounds beside them."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvikk.cache.eviction import EVICTION_POLICIES
from kvikk.cache.eviction.lru import Lru
from kvikk.errors import RequestError
from kvikk.router.policies import POLICIES
from kvikk.router.replay import oracles
from kvikk.router.replay.simulation import Progress, Rates, Tally, pooled, simulate
from kvikk.router.replay.trace import Trace


@dataclass(frozen=True)
class StudyOptions:
    """What to try. Raises RequestError for what makes no sense.

    ``capacities`` are tokens of all replicas together. Without ``policies`` one cache is studied.
    Without ``prefill_tokens_per_s`` replicas are as fast as makes ``load`` of the trace's tokens.
    """

    replicas: tuple[int, ...] = (1,)
    capacities: tuple[int, ...] = ()
    policies: tuple[str, ...] = ()
    evictions: tuple[str, ...] = ("lru",)
    load: float = 0.9
    prefill_tokens_per_s: float | None = None
    decode_token_s: float = 0.03

    def __post_init__(self) -> None:
        _known("--policy", self.policies, POLICIES)
        _known("--eviction", self.evictions, EVICTION_POLICIES)
        if any(count < 1 for count in self.replicas):
            raise RequestError("--replicas takes numbers from 1 on")
        if any(tokens < 1 for tokens in self.capacities):
            raise RequestError("--capacity-tokens takes numbers from 1 on")
        if not 0 < self.load <= 100:
            raise RequestError(f"--load is {self.load:g}; it must be above 0 and at most 100")
        if self.prefill_tokens_per_s is not None and not self.prefill_tokens_per_s > 0:
            raise RequestError("--prefill-rate must be above 0")
        if not self.decode_token_s >= 0:
            raise RequestError("--decode-ms must not be below 0")


@dataclass(frozen=True)
class Row:
    """One combination. Rates are of prompt tokens; ``imbalance`` is the busiest replica's computed
    tokens over the mean; ``elsewhere_rate`` is what another replica held.
    """

    policy: str | None
    eviction: str
    replicas: int
    capacity_tokens: int
    hit_rate: float
    ttft_mean_s: float
    ttft_p95_s: float
    imbalance: float
    elsewhere_rate: float = 0.0


@dataclass(frozen=True)
class Bounds:
    """Hit rates that the rows of the same replicas and memory can be held against.

    The times are those of the pooled caches, each prompt going where the wait is least.
    """

    replicas: int
    capacity_tokens: int
    infinite: float
    one_cache: float
    best_eviction: float
    perfect_placement: float
    infinite_ttft_mean_s: float
    infinite_ttft_p95_s: float
    one_cache_ttft_mean_s: float
    one_cache_ttft_p95_s: float


@dataclass(frozen=True)
class Study:
    """All that was found, and what it stands on."""

    rows: tuple[Row, ...]
    bounds: tuple[Bounds, ...]
    requests: int
    prompt_tokens: int
    block_tokens: int
    distinct_blocks: int
    duration_s: float
    prefill_tokens_per_s: dict[int, float]

    def to_json(self) -> dict[str, Any]:
        """As one object. ``oracles`` are the hit rates beside the first row."""
        first = self.bounds[0]
        return {
            "rows": [asdict(row) for row in self.rows],
            "oracles": {
                "infinite": first.infinite,
                "one_cache": first.one_cache,
                "best_eviction": first.best_eviction,
                "perfect_placement": first.perfect_placement,
            },
            "bounds": [asdict(one) for one in self.bounds],
            "trace": {
                "requests": self.requests,
                "prompt_tokens": self.prompt_tokens,
                "block_tokens": self.block_tokens,
                "distinct_blocks": self.distinct_blocks,
                "duration_s": self.duration_s,
            },
            "prefill_tokens_per_s": {
                str(replicas): rate for replicas, rate in self.prefill_tokens_per_s.items()
            },
        }


def num_runs(options: StudyOptions) -> int:
    """How often ``study`` goes through the trace."""
    settings = max(1, len(options.capacities))
    rows = sum(len(_policies(options, replicas)) for replicas in options.replicas)
    bounds = len(options.replicas) * (3 + oracles.PLACEMENTS)
    return settings * (rows * len(options.evictions) + bounds)


def study(trace: Trace, options: StudyOptions, progress: Progress = lambda done: None) -> Study:
    """Go through the trace once for every combination, and for the bounds of each fleet.

    Raises RequestError if a replica would not hold a single block.
    """
    # A tenth of everything is where policies differ most.
    tenth = max(trace.distinct_blocks // 10, *options.replicas) * trace.block_tokens
    rows: list[Row] = []
    bounds: list[Bounds] = []
    speeds: dict[int, float] = {}
    for replicas in options.replicas:
        rates = _rates(trace, options, replicas)
        speeds[replicas] = rates.prefill_tokens_per_s
        for capacity_tokens in options.capacities or (tenth,):
            blocks = capacity_tokens // trace.block_tokens // replicas
            if blocks < 1:
                raise RequestError(
                    f"{capacity_tokens:,} tokens in all are less than a block of "
                    f"{trace.block_tokens} for each of {replicas} replicas"
                )
            for eviction in options.evictions:
                for policy in _policies(options, replicas):
                    caches = [EVICTION_POLICIES[eviction](blocks) for _ in range(replicas)]
                    tally = (
                        pooled(trace, caches[0], 1, rates, progress)
                        if policy is None
                        else simulate(trace, POLICIES[policy], caches, rates, progress)
                    )
                    rows.append(_row(trace, policy, eviction, capacity_tokens, tally))
            bounds.append(_bounds(trace, options, replicas, capacity_tokens, rates, progress))
    return Study(
        tuple(rows),
        tuple(bounds),
        len(trace.requests),
        trace.prompt_tokens,
        trace.block_tokens,
        trace.distinct_blocks,
        trace.duration_s,
        speeds,
    )


def _policies(options: StudyOptions, replicas: int) -> tuple[str | None, ...]:
    return options.policies or ((None,) if replicas == 1 else tuple(POLICIES))


def _rates(trace: Trace, options: StudyOptions, replicas: int) -> Rates:
    speed = options.prefill_tokens_per_s
    if speed is None:
        if trace.duration_s <= 0:
            raise RequestError("all requests came at once: say --prefill-rate")
        speed = trace.prompt_tokens / (trace.duration_s * replicas * options.load)
    return Rates(speed, options.decode_token_s)


def _row(
    trace: Trace, policy: str | None, eviction: str, capacity_tokens: int, tally: Tally
) -> Row:
    mean_s, p95_s = _ttft(tally)
    work = tally.computed_tokens
    return Row(
        policy,
        eviction,
        len(work),
        capacity_tokens,
        tally.hit_tokens / trace.prompt_tokens,
        mean_s,
        p95_s,
        max(work) * len(work) / max(1, sum(work)),
        tally.elsewhere_tokens / trace.prompt_tokens,
    )


def _bounds(
    trace: Trace,
    options: StudyOptions,
    replicas: int,
    capacity_tokens: int,
    rates: Rates,
    progress: Progress,
) -> Bounds:
    eviction = EVICTION_POLICIES[options.evictions[0]]
    blocks = capacity_tokens // trace.block_tokens
    everything = pooled(trace, Lru(max(1, trace.distinct_blocks)), replicas, rates, progress)
    one = pooled(trace, eviction(blocks), replicas, rates, progress)
    best = oracles.best_eviction(trace, blocks, progress)
    perfect = oracles.perfect_placement(trace, replicas, blocks // replicas, progress)
    return Bounds(
        replicas,
        capacity_tokens,
        everything.hit_tokens / trace.prompt_tokens,
        one.hit_tokens / trace.prompt_tokens,
        best,
        perfect,
        *_ttft(everything),
        *_ttft(one),
    )


def _ttft(tally: Tally) -> tuple[float, float]:
    return float(np.mean(tally.ttft_s)), float(np.percentile(tally.ttft_s, 95))


def _known(option: str, names: Sequence[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise RequestError(f"{option} {name!r} is not one of {', '.join(known)}")
