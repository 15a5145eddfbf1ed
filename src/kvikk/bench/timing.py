"""``bench timing``: what the cache saves within one answer.

Each cell is the median of some runs; both paths of all engines run back to back within one, so that
a machine that drifts carries them along. Positions are counted where they are computed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from kvikk.bench.loops import Generated, Judge, Loop

Path = str  # "cached" or "uncached"
PATHS: Mapping[Path, bool] = {"cached": True, "uncached": False}

# How far the measurement is: positions computed since the last call, and what comes next.
Progress = Callable[[int, str], None]


@dataclass(frozen=True)
class Timed:
    """One path's runs at one length; ``computed_tokens`` are the positions of one run."""

    runs_s: tuple[float, ...]
    computed_tokens: int

    @property
    def median_s(self) -> float:
        """The cell."""
        return median(self.runs_s)


@dataclass(frozen=True)
class Row:
    """One engine at one output length."""

    engine: str
    new_tokens: int
    cached: Timed
    uncached: Timed

    @property
    def speed_up(self) -> float:
        """Uncached over cached seconds."""
        return self.uncached.median_s / self.cached.median_s


@dataclass(frozen=True)
class Difference:
    """Where two paths' tokens part first: at the ``position``-th new token, counted from 0.

    ``gap`` is how much likelier the first path's token is than the other's, in logits of fp32
    arithmetic where that was asked for; None: not known. Near 0 it is a tie that rounding decides.
    """

    one: str
    other: str
    new_tokens: int
    position: int
    token_ids: tuple[int, int]
    gap: float | None


@dataclass(frozen=True)
class TimingReport:
    """All rows, by length and then by engine."""

    prompt_tokens: int
    repeats: int
    descriptions: Mapping[str, str]
    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]

    def previous(self, row: Row) -> Row | None:
        """The same engine's row before this one."""
        mine = [other for other in self.rows if other.engine == row.engine]
        index = mine.index(row)
        return mine[index - 1] if index else None

    def to_json(self) -> dict[str, Any]:
        """The document that ``--json`` prints, one object a row."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "repeats": self.repeats,
            "engines": dict(self.descriptions),
            "rows": [self._row_json(row) for row in self.rows],
            "token_ids_equal": not self.differences,
            "differences": [asdict(difference) for difference in self.differences],
        }

    def _row_json(self, row: Row) -> dict[str, Any]:
        before = self.previous(row)
        return {
            "engine": row.engine,
            "new_tokens": row.new_tokens,
            "cached_s": row.cached.median_s,
            "uncached_s": row.uncached.median_s,
            "speed_up": row.speed_up,
            "cached_vs_previous": before and row.cached.median_s / before.cached.median_s,
            "uncached_vs_previous": before and row.uncached.median_s / before.uncached.median_s,
            "cached_computed_tokens": row.cached.computed_tokens,
            "uncached_computed_tokens": row.uncached.computed_tokens,
            "cached_runs_s": row.cached.runs_s,
            "uncached_runs_s": row.uncached.runs_s,
        }


def positions_to_compute(prompt_tokens: int, lengths: Sequence[int], repeats: int) -> int:
    """How much work both paths of one engine are, for a progress bar."""
    return repeats * sum(
        _path_positions(prompt_tokens, new_tokens, path) for new_tokens in lengths for path in PATHS
    )


def measure_timing(
    loops: Sequence[Loop],
    prompt: Sequence[int],
    lengths: Sequence[int],
    repeats: int,
    progress: Progress = lambda positions, text: None,
) -> TimingReport:
    """Generate ``lengths`` tokens from ``prompt`` with all ``loops``, cached and uncached."""
    for loop in loops:
        for use_cache in PATHS.values():
            loop.generate(prompt, 2, use_cache=use_cache)  # first calls compile and page in
    rows: list[Row] = []
    differences: list[Difference] = []
    for new_tokens in lengths:
        runs: dict[tuple[str, Path], list[Generated]] = {
            (loop.name, path): [] for loop in loops for path in PATHS
        }
        for repeat in range(repeats):
            for loop in loops:
                for path, use_cache in PATHS.items():
                    text = f"{loop.name}, {path}, {new_tokens} tokens, run {repeat + 1}"
                    progress(0, text)
                    done = loop.generate(prompt, new_tokens, use_cache=use_cache)
                    runs[loop.name, path].append(done)
                    progress(_path_positions(len(prompt), new_tokens, path), text)
        rows += [
            Row(loop.name, new_tokens, *(_timed(runs[loop.name, path]) for path in PATHS))
            for loop in loops
        ]
        differences += _differences(loops, prompt, runs)
    return TimingReport(
        len(prompt),
        repeats,
        {loop.name: loop.description for loop in loops},
        tuple(rows),
        tuple(differences),
    )


def _path_positions(prompt_tokens: int, new_tokens: int, path: Path) -> int:
    if PATHS[path]:
        return prompt_tokens + new_tokens - 1
    return new_tokens * prompt_tokens + new_tokens * (new_tokens - 1) // 2


def _timed(runs: Sequence[Generated]) -> Timed:
    counts = {run.computed_tokens for run in runs}
    assert len(counts) == 1, f"runs of one cell computed {counts} positions"
    return Timed(tuple(run.seconds for run in runs), counts.pop())


def _differences(
    loops: Sequence[Loop],
    prompt: Sequence[int],
    runs: Mapping[tuple[str, Path], Sequence[Generated]],
) -> list[Difference]:
    """Every run against the very first; of each path the first run that differs."""
    first = next(iter(runs))
    expected = runs[first][0].token_ids
    gap = next((loop.gap for loop in loops if isinstance(loop, Judge)), None)
    found = []
    for name, generated in runs.items():
        for run in generated:
            if run.token_ids == expected:
                continue
            pairs = enumerate(zip(expected, run.token_ids, strict=True))
            position, ids = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
            behind = (*prompt, *expected[:position])
            found.append(
                Difference(
                    ", ".join(first),
                    ", ".join(name),
                    len(expected),
                    position,
                    ids,
                    None if gap is None else gap(behind, *ids),
                )
            )
            break
    return found
