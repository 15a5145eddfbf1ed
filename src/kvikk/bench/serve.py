"""``bench serve`` as one call: reach the server, run the workload, sum it up."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from kvikk.bench.answers import Result
from kvikk.bench.books import RunBooks, between, read_totals
from kvikk.bench.load import LoadRun, run_sessions
from kvikk.bench.load_summary import LoadSummary, summarise
from kvikk.bench.target import Api, Target, reach
from kvikk.bench.workloads import Workload, at_rate
from kvikk.errors import RequestError


@dataclass(frozen=True)
class ServeOptions:
    """Which server, how hard. Raises RequestError for what makes no sense.

    ``rate_per_s`` and ``concurrency`` exclude each other; without either, sessions come at their
    own moments of arrival. ``seed`` decides all texts; None draws one, so that no run finds in the
    server's cache what an earlier one left there.
    """

    base_url: str
    api: Api
    model: str | None = None
    api_key: str | None = None
    rate_per_s: float | None = None
    concurrency: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.rate_per_s is not None and self.concurrency is not None:
            raise RequestError("--rate and --concurrency exclude each other; choose one")
        if self.rate_per_s is not None and not self.rate_per_s > 0:
            raise RequestError(f"--rate is {self.rate_per_s}; it must be above 0")


@dataclass(frozen=True)
class ServeReport:
    """A run, its server and its figures. ``books`` None: the server keeps none."""

    target: Target
    seed: int
    run: LoadRun
    summary: LoadSummary
    books: RunBooks | None

    def to_json(self) -> dict[str, Any]:
        """The document that ``--json`` prints."""
        return {
            "base_url": self.target.base_url,
            "model": self.target.model,
            "software": self.target.software,
            "api": self.target.api,
            "accepted_fields": sorted(self.target.fields),
            "lengths": asdict(self.target.lengths),
            "seed": self.seed,
            **self.summary.to_json(),
            "books": None if self.books is None else self.books.to_json(),
            "results": [asdict(result) for result in self.run.results],
        }


def measure(
    options: ServeOptions,
    workload: Workload,
    *,
    on_result: Callable[[Result], None] = lambda result: None,
) -> ServeReport:
    """Run ``workload`` against the server of ``options``.

    Raises ModelError if it cannot be reached, RequestError if it refuses even a short request.
    """
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(31)
    return asyncio.run(_measure(options, workload, seed, on_result))


async def _measure(
    options: ServeOptions, workload: Workload, seed: int, on_result: Callable[[Result], None]
) -> ServeReport:
    target = await reach(
        options.base_url,
        api=options.api,
        model=options.model,
        api_key=options.api_key,
        seed=seed,
    )
    sessions = workload.sessions(target.lengths, seed)
    if options.rate_per_s is not None:
        sessions = at_rate(sessions, options.rate_per_s, seed)
    before = await read_totals(target)
    run = await run_sessions(target, sessions, concurrency=options.concurrency, on_result=on_result)
    books = between(before, await read_totals(target))
    return ServeReport(target, seed, run, summarise(run), books)
