"""vLLM's lines, from ``# GPU blocks`` of its first engine to today's."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvikk.shapes.reserve.vllm import VllmLayout
from kvikk.shapes.start_logs.records import Comparison, Printed, Subject
from kvikk.shapes.start_logs.vllm_settings import Guess, Seen, guesses

_GIB = 2**30
_BLOCK_SIZE = re.compile(r"Setting attention block size to (\d+) tokens")
_PADDING = re.compile(r"Padding mamba page size by ([\d.]+)%")
_AVAILABLE = re.compile(
    r"Available KV cache memory: ([\d.]+) GiB"
    r"|rest of the memory reserved for KV Cache is ([\d.]+) ?Gi?B"
)
_TOKENS = re.compile(r"GPU KV cache size: ([\d,]+) tokens")
_CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")
_BLOCKS = re.compile(r"# (?:GPU|CUDA) blocks: (\d+), # CPU blocks: (\d+)")
_NEEDED = re.compile(
    r"max seq len \((\d+)\), \(?([\d.]+) GiB KV\s+cache is needed.*?"
    r"available KV cache\s+memory \(([\d.]+) GiB\)"
    r"(?:.*?estimated maximum model length is (\d+))?"
)
_TOO_LONG = re.compile(
    r"max seq len \((\d+)\) is larger than the maximum number of tokens that can be stored in "
    r"KV cache \((\d+)\)"
)


# What a figure would be under a guess, in words, and whether that is what was printed.
_Answer = tuple[str, bool]


@dataclass(frozen=True)
class _Question:
    """One printed figure, and how to find it from a layout."""

    line_number: int
    figure: str
    printed: str
    test: Callable[[VllmLayout], _Answer]


def check(lines: Sequence[str], subject: Subject) -> Iterator[Comparison]:
    """Compare each line about the cache that vLLM has printed.

    What the log leaves open is guessed: the guess nearest to the usual that explains the most.
    """
    seen = Seen(subject.dtypes, subject.tp)
    for line in lines:  # the longest request is often only named after what depends on it
        if match := _CONCURRENCY.search(line):
            seen.context_tokens = int(match[1].replace(",", ""))
    questions = [
        question
        for number, line in enumerate(lines, 1)
        for question in _questions(number, line, seen)
    ]
    if not questions:
        return
    best: tuple[int, Guess, list[_Answer]] | None = None
    for guess in guesses(seen, subject):
        answers = [question.test(guess.plan) for question in questions]
        explained = sum(agrees for _, agrees in answers)
        if best is None or explained > best[0]:
            best = explained, guess, answers
        if explained == len(questions):
            break
    if best is None:
        return
    _, guess, answers = best
    rule = "; ".join([*([guess.words] if guess.words else []), *guess.plan.rules])
    for question, (computed, agrees) in zip(questions, answers, strict=True):
        yield Comparison(
            question.line_number,
            question.figure,
            question.printed,
            computed,
            agrees,
            rule if agrees else f"no settings that we know of explain it; {rule}",
        )


def _questions(number: int, line: str, seen: Seen) -> Iterator[_Question]:
    """The figures of one line; what it says of settings and memory goes to ``seen``."""
    if match := _BLOCK_SIZE.search(line):
        yield _block_size(number, Printed(match[1]))
    elif match := _PADDING.search(line):
        yield _padding(number, Printed(match[1]))
    elif match := _AVAILABLE.search(line):
        seen.available = Printed(match[1] or match[2])
    elif match := _TOKENS.search(line) or _TOO_LONG.search(line):
        seen.tokens = int(match[match.re.groups].replace(",", ""))
        if seen.available is not None:
            yield _tokens(number, seen.tokens, seen.available, seen.context_tokens)
    elif match := _CONCURRENCY.search(line):
        context_tokens = int(match[1].replace(",", ""))
        if seen.tokens is not None or seen.available is not None:
            yield _concurrency(
                number, Printed(match[2]), context_tokens, seen.tokens, seen.available
            )
    elif match := _BLOCKS.search(line):
        seen.tokens = int(match[1]) * seen.settings.block_size
        if int(match[2]):
            yield _host_blocks(number, int(match[2]), seen.swap_gib)
        if seen.available is not None:
            yield _device_blocks(number, int(match[1]), seen.available)
    elif match := _NEEDED.search(line):
        seen.available = Printed(match[3])
        yield _needed(number, int(match[1]), Printed(match[2]))
        if match[4] is not None:
            yield _longest(number, int(match[1]), int(match[4]), seen.available)
    else:
        seen.note(line)


def _block_size(number: int, printed: Printed) -> _Question:
    def test(plan: VllmLayout) -> _Answer:
        return f"{plan.block_size:,}", plan.block_size == printed.value

    return _Question(number, "attention block size", f"{int(printed.value):,}", test)


def _padding(number: int, printed: Printed) -> _Question:
    def test(plan: VllmLayout) -> _Answer:
        page_bytes = max(group.page_bytes for group in plan.groups)
        padding = 100 * (page_bytes / plan.state_bytes - 1) if plan.state_bytes else 0.0
        return f"{printed.like(padding)} %", printed.agrees(padding)

    return _Question(number, "padding of states", f"{printed.text} %", test)


def _memory(available: Printed) -> tuple[int, int]:
    """The least and the most bytes that are printed like this."""
    low, high = (available.value + sign * available.half_unit for sign in (-1, 1))
    return int(low * _GIB), int(high * _GIB)


def _available_blocks(plan: VllmLayout, available: Printed) -> range:
    low, high = _memory(available)
    return range(plan.num_blocks(low), plan.num_blocks(high) + 1)


def _as_at_first(plan: VllmLayout, num_blocks: int, context_tokens: int | None) -> int:
    """The tokens that vLLM printed for so many blocks until 2026: those of one group."""
    return num_blocks // len(plan.groups) * plan.block_size


def _as_now(plan: VllmLayout, num_blocks: int, context_tokens: int | None) -> int:
    """The tokens that it prints since: as many of the longest requests as fit."""
    if not context_tokens:
        return _as_at_first(plan, num_blocks, None)
    return int(plan.concurrency(num_blocks, context_tokens) * context_tokens)


def _blocks_of(plan: VllmLayout, tokens: int, context_tokens: int | None) -> list[int]:
    """The numbers of blocks for which vLLM prints ``tokens``, now or at first."""
    groups = len(plan.groups)
    near = set(range(tokens // plan.block_size * groups, (tokens // plan.block_size + 1) * groups))
    if context_tokens:
        now = int(tokens * plan.blocks(context_tokens) / context_tokens)
        near |= {now, now + 1}
    return [
        blocks
        for blocks in sorted(near)
        if tokens
        in (_as_at_first(plan, blocks, context_tokens), _as_now(plan, blocks, context_tokens))
    ]


def _tokens(number: int, tokens: int, available: Printed, context_tokens: int | None) -> _Question:
    def test(plan: VllmLayout) -> _Answer:
        possible = _available_blocks(plan, available)
        agrees = any(blocks in possible for blocks in _blocks_of(plan, tokens, context_tokens))
        ranges = [
            (form(plan, possible[0], context_tokens), form(plan, possible[-1], context_tokens))
            for form in (_as_now, _as_at_first)
        ]
        low, high = next((ends for ends in ranges if ends[0] <= tokens <= ends[1]), ranges[0])
        return _span(low, high), agrees

    return _Question(number, f"tokens in {available.text} GiB", f"{tokens:,}", test)


def _concurrency(
    number: int,
    printed: Printed,
    context_tokens: int,
    tokens: int | None,
    available: Printed | None,
) -> _Question:
    def test(plan: VllmLayout) -> _Answer:
        if tokens is not None:
            possible: Sequence[int] = _blocks_of(plan, tokens, context_tokens)
        else:
            assert available is not None
            possible = _available_blocks(plan, available)
        times = [plan.concurrency(blocks, context_tokens) for blocks in possible]
        nearest = min(times, key=lambda one: abs(one - printed.value), default=0.0)
        return printed.like(nearest), printed.agrees(nearest)

    return _Question(number, f"requests of {context_tokens:,} tokens", printed.text, test)


def _host_blocks(number: int, blocks: int, swap_gib: float) -> _Question:
    def test(plan: VllmLayout) -> _Answer:
        computed = plan.num_blocks(int(swap_gib * _GIB))
        return f"{computed:,}", computed == blocks

    return _Question(number, f"blocks in {swap_gib:g} GiB of swap", f"{blocks:,}", test)


def _device_blocks(number: int, blocks: int, available: Printed) -> _Question:
    def test(plan: VllmLayout) -> _Answer:
        possible = _available_blocks(plan, available)
        return _span(possible[0], possible[-1]), blocks in possible

    return _Question(number, f"blocks in {available.text} GiB", f"{blocks:,}", test)


def _needed(number: int, context_tokens: int, needed: Printed) -> _Question:
    def test(plan: VllmLayout) -> _Answer:
        size = plan.request_bytes(context_tokens) / _GIB
        return f"{needed.like(size)} GiB", needed.agrees(size)

    return _Question(
        number, f"one request of {context_tokens:,} tokens", f"{needed.text} GiB", test
    )


def _longest(number: int, context_tokens: int, longest: int, available: Printed) -> _Question:
    def test(plan: VllmLayout) -> _Answer:
        low, high = (plan.longest_context(end, context_tokens) for end in _memory(available))
        return _span(low, high), low <= longest <= high

    return _Question(number, f"longest request in {available.text} GiB", f"{longest:,}", test)


def _span(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} … {high:,}"
