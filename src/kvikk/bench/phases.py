"""Prefill and decode apart: what a prompt costs by its length, a token by context and by batch.

Prefill is bound by arithmetic: twice the tokens take twice as long, and more once attention counts.
Decode at batch 1 is bound by memory: every token reads all weights, however few they serve. A
batch shares that reading until arithmetic bounds it too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from kvikk.bench.loops import Loop

DECODE_STEPS = 16
BATCH_PROMPT_TOKENS = 64
BATCHES = (1, 2, 4, 8, 16, 32, 64)

Phase = Literal["prefill", "context", "batch"]


@dataclass(frozen=True)
class PhaseRow:
    """One point: seconds of a whole prefill, or of one decode step.

    ``size`` is tokens of a prompt, tokens of context, or sequences in the batch. ``weight_bytes``
    are the model's.
    """

    engine: str
    phase: Phase
    size: int
    seconds: float
    weight_bytes: int

    @property
    def tokens_per_s(self) -> float:
        """Prompt tokens read a second, or tokens generated."""
        return (1 if self.phase == "context" else self.size) / self.seconds

    @property
    def weight_bytes_per_s(self) -> float:
        """How fast the weights pass by if a step reads each of them once."""
        return self.weight_bytes / self.seconds


@dataclass(frozen=True)
class PhasesReport:
    """All points, by phase, then by size, then by engine."""

    repeats: int
    descriptions: Mapping[str, str]
    rows: tuple[PhaseRow, ...]

    def of(self, phase: Phase) -> tuple[PhaseRow, ...]:
        """The rows of one phase."""
        return tuple(row for row in self.rows if row.phase == phase)

    def to_json(self) -> dict[str, Any]:
        """The document that ``--json`` prints, one object a point."""
        return {
            "repeats": self.repeats,
            "engines": dict(self.descriptions),
            "phases": [asdict(row) | {"tokens_per_s": row.tokens_per_s} for row in self.rows],
        }


def doubling(first: int, last: int) -> tuple[int, ...]:
    """``first``, twice that, and so on; then whole thousands where another half fits in ``last``.

    So a context of 8,192 tokens, which has no room for an answer behind 8,192, ends with 8,000.
    """
    sizes = [first]
    while 2 * sizes[-1] <= last:
        sizes.append(2 * sizes[-1])
    thousands = last // 1000 * 1000
    return (*sizes, thousands) if 2 * thousands >= 3 * sizes[-1] else tuple(sizes)


@dataclass(frozen=True)
class PhasePlan:
    """Which points: lengths of prompts, tokens of context, sequences in a batch."""

    prompts: tuple[int, ...]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]

    @property
    def num_points(self) -> int:
        """Points for one engine."""
        return len(self.prompts) + len(self.contexts) + len(self.batches)

    @classmethod
    def up_to(cls, longest_tokens: int, largest_batch: int = BATCHES[-1]) -> "PhasePlan":
        """All points that fit a context of ``longest_tokens``."""
        room = longest_tokens - DECODE_STEPS - 1
        return cls(
            prompts=doubling(16, longest_tokens - 1),
            contexts=(1, *doubling(16, room)),
            batches=tuple(batch for batch in BATCHES if batch <= largest_batch),
        )


def measure_phases(
    loops: Sequence[Loop],
    plan: PhasePlan,
    prompt: Callable[[int, int], Sequence[int]],
    repeats: int,
    progress: Callable[[int, str], None] = lambda steps, text: None,
) -> PhasesReport:
    """Medians of ``repeats`` runs a point; engines take turns at each.

    ``prompt(length, index)`` gives token ids; those of another index are others from the first on.
    """
    rows: list[PhaseRow] = []
    for phase, size in _points(plan):
        runs: dict[str, list[float]] = {loop.name: [] for loop in loops}
        for _ in range(repeats):
            for loop in loops:
                progress(0, f"{loop.name}, {phase} {size}")
                runs[loop.name].append(_run(loop, phase, size, prompt))
        rows += [
            PhaseRow(loop.name, phase, size, median(runs[loop.name]), loop.weight_bytes)
            for loop in loops
        ]
        progress(len(loops), "")
    return PhasesReport(repeats, {loop.name: loop.description for loop in loops}, tuple(rows))


def _points(plan: PhasePlan) -> Iterator[tuple[Phase, int]]:
    for prompt_tokens in plan.prompts:
        yield "prefill", prompt_tokens
    for context_tokens in plan.contexts:
        yield "context", context_tokens
    for batch in plan.batches:
        yield "batch", batch


def _run(loop: Loop, phase: Phase, size: int, prompt: Callable[[int, int], Sequence[int]]) -> float:
    if phase == "prefill":
        return loop.prefill_s(prompt(size, 0))
    if phase == "context":
        return loop.decode_s([prompt(size, 0)], DECODE_STEPS)
    prompts = [prompt(BATCH_PROMPT_TOKENS, index) for index in range(size)]
    return loop.decode_s(prompts, DECODE_STEPS)
