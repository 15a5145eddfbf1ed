"""From which length on prompts are cached, and in which steps: found blind, by asking.

Every length is a prompt of its own with a nonce of its own, sent twice: a short slice is a prefix
of a longer one and would warm it. How long a prompt is, the API says itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvikk.errors import RequestError
from kvikk.probe.api import Prompt
from kvikk.probe.money import Estimate, estimate
from kvikk.probe.run import NOT_TOLD, Ask, Run, contamination
from kvikk.text.words import text_of

SHORTEST_WORDS = 16
UP_TO_WORDS = 8_192


@dataclass(frozen=True)
class Sample:
    """One length: its tokens, and how many of them the second of two equal requests read."""

    words: int
    prompt_tokens: int
    read_tokens: int


@dataclass(frozen=True)
class Floor:
    """What the samples say. None where no length up to the longest was cached.

    ``floor_tokens`` is the least that was ever read. The shortest prompt that was cached and the
    longest that was not enclose the length where it begins. ``step_tokens`` is what the count grows
    by where it first grows; None if it did not within the lengths tried.
    """

    samples: tuple[Sample, ...]
    floor_tokens: int | None
    step_tokens: int | None
    shortest_cached_tokens: int | None
    longest_uncached_tokens: int | None
    contaminated: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The figures, and the samples they rest on."""
        return {
            "floor_tokens": self.floor_tokens,
            "step_tokens": self.step_tokens,
            "shortest_cached_tokens": self.shortest_cached_tokens,
            "longest_uncached_tokens": self.longest_uncached_tokens,
            "contaminated": bool(self.contaminated),
            "samples": [
                {"prompt_tokens": sample.prompt_tokens, "read_tokens": sample.read_tokens}
                for sample in self.samples
            ],
        }


def floor(run: Run, up_to_words: int = UP_TO_WORDS) -> Floor:
    """Search for the floor, then for the next step above it.

    Raises RequestError where no answer tells what was read.
    """
    if up_to_words <= SHORTEST_WORDS:
        raise RequestError(f"--up-to is {up_to_words}; expected more than {SHORTEST_WORDS}")
    probing = _Probing(run)
    hit = _first_growth(probing, probing.shared_tokens, SHORTEST_WORDS, up_to_words)
    if not run.tells_reads:
        raise RequestError(NOT_TOLD)
    step = None
    if hit is not None and hit.words < up_to_words:
        longer = _first_growth(probing, hit.read_tokens, hit.words, up_to_words, 8)
        step = None if longer is None else longer.read_tokens - hit.read_tokens
    samples = tuple(sorted(probing.samples.values(), key=lambda sample: sample.words))
    uncached = [
        sample.prompt_tokens for sample in samples if sample.read_tokens <= probing.shared_tokens
    ]
    return Floor(
        samples,
        None if hit is None else hit.read_tokens,
        step,
        None if hit is None else hit.prompt_tokens,
        max(uncached, default=None),
        tuple(probing.contaminated),
    )


def planned(up_to_words: int = UP_TO_WORDS) -> Estimate:
    """The most that a search sends: two doublings and two bisections, two requests each."""
    lengths = list(_doubling(SHORTEST_WORDS, up_to_words, SHORTEST_WORDS))
    tries = 2 * (len(lengths) + up_to_words.bit_length())
    return estimate(()) + Estimate(2 * tries, 2 * tries * up_to_words)


class _Probing:
    """Lengths that were tried."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.shared_tokens = run.shared_tokens()
        self.samples: dict[int, Sample] = {}
        self.contaminated: list[str] = []

    def sample(self, words: int) -> Sample:
        """Try a length, once."""
        if words not in self.samples:

            def ask_all(nonce: str, ask: Ask) -> None:
                prompt = Prompt(user=(f"{nonce} {text_of(words, 'floor')}",))
                for turn in ("first", "again"):
                    ask(prompt, f"{words} words, {turn}")

            first, second = self._run.arm(f"{words} words", ask_all)
            found = contamination([first, second], self.shared_tokens)
            if found is not None:
                self.contaminated.append(found)
            read_tokens = second.counts.read_tokens or 0
            self.samples[words] = Sample(words, second.counts.prompt_tokens, read_tokens)
        return self.samples[words]


def _first_growth(
    probing: _Probing, above_tokens: int, from_words: int, up_to_words: int, stride: int = 0
) -> Sample | None:
    """The shortest length, to the word, of which more than ``above_tokens`` is read."""
    below = from_words - 1
    for words in _doubling(from_words, up_to_words, stride or from_words):
        if probing.sample(words).read_tokens > above_tokens:
            break
        below = words
    else:
        return None
    above = words
    while above - below > 1:
        middle = (above + below) // 2
        if probing.sample(middle).read_tokens > above_tokens:
            above = middle
        else:
            below = middle
    return probing.sample(above)


def _doubling(start: int, stop: int, stride: int) -> Iterator[int]:
    """Start, and then further by strides that double, the last one to ``stop`` exactly."""
    at = start
    while at < stop:
        yield at
        at += stride
        stride *= 2
    yield stop
