"""``bench timing`` as one call: a prompt, the engines, the measurement."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from kvikk.bench.loops import Loop, LoopOptions, check_positive
from kvikk.bench.phases import (
    BATCH_PROMPT_TOKENS,
    DECODE_STEPS,
    PhasePlan,
    PhaseRow,
    PhasesReport,
    measure_phases,
)
from kvikk.bench.timing import Progress, TimingReport, measure_timing, positions_to_compute
from kvikk.errors import RequestError
from kvikk.files.sources import ModelSource, resolve
from kvikk.shapes.families import read_shape
from kvikk.text.tokenizer import Tokenizer, load_tokenizer
from kvikk.text.words import PROSE, text_of

LONGEST_TOKENS = 8192
# While a batch is being read in, those who are ready go on; room for that, and to be timed in.
_BATCH_TOKENS = BATCH_PROMPT_TOKENS + 4 * DECODE_STEPS + 64

# Told how much there is to do, gives the function that is told of progress.
Bar = Callable[[int], Progress]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class TimingOptions:
    """What to generate. Raises RequestError for what makes no sense."""

    lengths: tuple[int, ...] = (32, 64, 128, 256)
    prompt_tokens: int = 64
    repeats: int = 3

    def __post_init__(self) -> None:
        check_positive("lengths", self.lengths)
        check_positive("prompt tokens", [self.prompt_tokens])
        check_positive("repeats", [self.repeats])
        if list(self.lengths) != sorted(set(self.lengths)):
            raise RequestError("lengths must grow: each row is compared with the one before it")


def run_timing(
    engines: LoopOptions, options: TimingOptions, bar: Bar, tell: Tell = lambda line: None
) -> TimingReport:
    """The table of cached and uncached generation.

    Raises ModelError if the model cannot be loaded, RequestError if its context is too short.
    """
    prompts = _Prompts(resolve(engines.model))
    longest = options.prompt_tokens + options.lengths[-1]
    prompts.check_fits(longest)
    loops = [_open(name, engines, longest, 1, tell) for name in engines.engines]
    work = len(loops) * positions_to_compute(
        options.prompt_tokens, options.lengths, options.repeats
    )
    prompt = prompts.token_ids(options.prompt_tokens)
    return measure_timing(loops, prompt, options.lengths, options.repeats, bar(work))


def run_phases(
    engines: LoopOptions,
    repeats: int,
    longest_tokens: int | None,
    bar: Bar,
    tell: Tell = lambda line: None,
) -> PhasesReport:
    """Prefill and decode apart, up to ``longest_tokens`` (None: 8,192 or the model's context).

    Raises ModelError and RequestError as ``run_timing`` does.
    """
    check_positive("repeats", [repeats])
    prompts = _Prompts(resolve(engines.model))
    if longest_tokens is None:
        longest_tokens = min(LONGEST_TOKENS, prompts.context_tokens)
    prompts.check_fits(max(longest_tokens, _BATCH_TOKENS))
    plan = PhasePlan.up_to(longest_tokens)
    progress = bar(plan.num_points * len(engines.engines))
    rows: list[PhaseRow] = []
    descriptions: dict[str, str] = {}
    # One sequence of any length, then many short ones: never memory for many long ones.
    for part, most_tokens, most_sequences in (
        (PhasePlan(plan.prompts, plan.contexts, ()), longest_tokens, 1),
        (PhasePlan((), (), plan.batches), _BATCH_TOKENS, plan.batches[-1]),
    ):
        loops = [
            _open(name, engines, most_tokens, most_sequences, tell) for name in engines.engines
        ]
        measured = measure_phases(loops, part, prompts.token_ids, repeats, progress)
        rows += measured.rows
        descriptions |= measured.descriptions
    return PhasesReport(repeats, descriptions, tuple(rows))


class _Prompts:
    """Prompts of any length in a model's own tokens."""

    def __init__(self, source: ModelSource) -> None:
        self._source = source
        self.context_tokens = read_shape(source.config).context_tokens

    def check_fits(self, num_tokens: int) -> None:
        """Raise RequestError if the model's context is shorter."""
        if num_tokens > self.context_tokens:
            raise RequestError(
                f"{num_tokens:,} tokens of prompt and answer exceed the context of "
                f"{self._source.name}, {self.context_tokens:,} tokens; choose shorter ones"
            )

    def token_ids(self, num_tokens: int, index: int = 0) -> list[int]:
        """``num_tokens`` tokens of a text, of another one for every ``index``."""
        text = text_of(num_tokens, "prompt", index)  # no word is less than a token
        if index == 0:
            text = f"{PROSE} {text}"
        return self._tokenizer.encode(text)[:num_tokens]

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return load_tokenizer(self._source)


def _open(name: str, options: LoopOptions, tokens: int, sequences: int, tell: Tell) -> Loop:
    def progress(line: str) -> None:
        tell(f"{name}: {line}")

    if name == "kvikk":
        from kvikk.bench.kvikk_loop import KvikkLoop

        return KvikkLoop(options, most_tokens=tokens, most_sequences=sequences, progress=progress)
    from kvikk.bench.transformers_loop import TransformersLoop

    return TransformersLoop(options, progress)
