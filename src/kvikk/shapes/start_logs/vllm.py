"""vLLM's lines, from ``# GPU blocks`` of its first engine to today's."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from kvikk.shapes.dtypes import KvDtypes, kv_dtypes
from kvikk.shapes.reserve.records import layers_of
from kvikk.shapes.reserve.vllm import VllmLayout, VllmSettings, layout
from kvikk.shapes.shape import ModelShape
from kvikk.shapes.start_logs.records import Comparison, Printed, Subject

_GIB = 2**30
_DEFAULT_SWAP_GIB = 4.0

# A setting stands in the arguments of the command, in the dictionary of those not at their
# default, or in the engine's configuration: --max-model-len 8192, 'max_model_len': 8192,
# max_seq_len=8192.
_SETTINGS = {
    name: re.compile(rf"(?:--|\b)(?:{words})['\"]?\s*[=: ]\s*['\"]?([\w.]+)")
    for name, words in {
        "tp": "tensor[-_]parallel[-_]size|-tp",
        "dtype": "kv[-_]cache[-_]dtype",
        "context": "max[-_]model[-_]len|max_seq_len",
        "step": "max[-_]num[-_]batched[-_]tokens",
        "block": "block[-_]size",
        "drafted": "num_speculative_tokens",
        "swap": "swap[-_]space",
    }.items()
}
_NO_HYBRID = re.compile(r"disable[-_]hybrid[-_]kv[-_]cache[-_]manager(?:['\"]?\s*[:=]\s*True)?\b")
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


@dataclass(frozen=True)
class _Guess:
    """One way in which the log's figures may have come about, in words where not the usual."""

    plan: VllmLayout
    words: str


@dataclass
class _Seen:
    """What the log has said so far."""

    dtypes: KvDtypes | None
    tp: int
    settings: VllmSettings = field(default_factory=VllmSettings)
    stated: set[str] = field(default_factory=set)
    context_tokens: int | None = None
    available: Printed | None = None
    tokens: int | None = None
    swap_gib: float = _DEFAULT_SWAP_GIB

    def note(self, line: str) -> None:
        """Take the settings that a line states. A line about anything else states none."""
        for name, pattern in _SETTINGS.items():
            if (match := pattern.search(line)) is None or match[1] in ("None", "auto"):
                continue
            value = match[1]
            if name == "dtype" and not value.isdigit():
                self.dtypes = kv_dtypes(value)
            elif name == "swap":
                self.swap_gib = float(value)
            elif value.isdigit():
                self.number(name, int(value))
        if _NO_HYBRID.search(line) and "=False" not in line:
            self.settings = replace(self.settings, hybrid=False)

    def number(self, name: str, value: int) -> None:
        """Take one setting that is a whole number."""
        self.stated.add(name)
        match name:
            case "tp":
                self.tp = value
            case "context":
                self.context_tokens = value
            case "step":
                self.settings = replace(self.settings, max_num_batched_tokens=value)
            case "block":
                self.settings = replace(self.settings, block_size=value)
            case "drafted":
                self.settings = replace(self.settings, speculative_tokens=value)


def check(lines: Sequence[str], subject: Subject) -> Iterator[Comparison]:
    """Compare each line about the cache that vLLM has printed."""
    seen = _Seen(subject.dtypes, subject.tp)
    for line in lines:  # the longest request is often only named after what depends on it
        if match := _CONCURRENCY.search(line):
            seen.context_tokens = int(match[1].replace(",", ""))
    for number, line in enumerate(lines, 1):
        if match := _BLOCK_SIZE.search(line):
            yield from _block_size(number, Printed(match[1]), seen, subject)
        elif match := _PADDING.search(line):
            yield from _padding(number, Printed(match[1]), seen, subject)
        elif match := _AVAILABLE.search(line):
            seen.available = Printed(match[1] or match[2])
        elif match := _TOKENS.search(line):
            seen.tokens = int(match[1].replace(",", ""))
            yield from _tokens(number, seen, subject)
        elif match := _CONCURRENCY.search(line):
            yield from _concurrency(number, Printed(match[2]), seen, subject)
        elif match := _BLOCKS.search(line):
            yield from _blocks(number, int(match[1]), int(match[2]), seen, subject)
        elif match := _NEEDED.search(line):
            yield from _needed(number, match, seen, subject)
        elif match := _TOO_LONG.search(line):
            seen.tokens = int(match[2])
            yield from _tokens(number, seen, subject)
        else:
            seen.note(line)


# What a test of a guess answers: the computed figure in words, and whether it is the printed one.
_Answer = tuple[str, bool]


def _compare(
    number: int,
    figure: str,
    printed: str,
    seen: _Seen,
    subject: Subject,
    test: Callable[[VllmLayout], _Answer],
) -> Iterator[Comparison]:
    """The first guess that explains the printed figure; the usual one if none does."""
    usual: Comparison | None = None
    for guess in _guesses(seen, subject):
        computed, agrees = test(guess.plan)
        rule = "; ".join([*([guess.words] if guess.words else []), *guess.plan.rules])
        comparison = Comparison(number, figure, printed, computed, agrees, rule)
        if agrees:
            yield comparison
            return
        usual = usual or comparison
    if usual is not None:
        yield replace(usual, rule=f"no setting known to us explains it; {usual.rule}")


def _guesses(seen: _Seen, subject: Subject) -> Iterator[_Guess]:
    """Ways in which the model may have been started that the log does not exclude.

    The usual one first, then by how many settings differ from it.
    """

    def others(name: str, usual: int, values: Sequence[int]) -> list[int]:
        return [usual] if name in seen.stated else [usual, *(set(values) - {usual})]

    settings = seen.settings
    shapes: list[tuple[str, ModelShape]] = [("", subject.shape), *subject.variants]
    has_windows = any(layer.window_tokens for layer in subject.shape.layers)
    has_states = any(layer.state for layer in subject.shape.layers)
    steps = others("step", settings.max_num_batched_tokens, (2048, 4096, 16384, 32768))
    drafted = others("drafted", settings.speculative_tokens, (1, 2, 3, 4))
    choices = product(
        shapes,
        [settings.hybrid, False] if has_windows and settings.hybrid else [settings.hybrid],
        (1, 2) if has_states else (1,),
        others("block", settings.block_size, (32, 64, 128)),
        steps if has_windows else steps[:1],
        drafted if has_states else drafted[:1],
    )
    guesses: list[tuple[int, int, list[str], ModelShape, VllmSettings]] = []
    for (form, shape), hybrid, states, block, step, draft in choices:
        words = [form] if form else []
        words += ["windows counted as full attention"] if hybrid != settings.hybrid else []
        words += ["two states a request, for prefix caching"] if states == 2 else []
        words += [f"block size {block}"] if block != settings.block_size else []
        words += [f"steps of {step:,} tokens"] if step != settings.max_num_batched_tokens else []
        words += [f"{draft} speculative tokens"] if draft != settings.speculative_tokens else []
        chosen = VllmSettings(
            block_size=block,
            max_num_batched_tokens=step,
            speculative_tokens=draft,
            state_blocks=states,
            hybrid=hybrid,
        )
        guesses.append((len(words), len(guesses), words, shape, chosen))
    for _, _, words, shape, chosen in sorted(guesses, key=lambda guess: guess[:2]):
        layers = layers_of(shape, seen.dtypes, tp=seen.tp, dp_attention=subject.dp_attention)
        plan = layout(layers, chosen)
        if plan is not None:
            yield _Guess(plan, ", ".join(words))


def _block_size(
    number: int, printed: Printed, seen: _Seen, subject: Subject
) -> Iterator[Comparison]:
    def test(plan: VllmLayout) -> _Answer:
        return f"{plan.block_size:,}", plan.block_size == printed.value

    yield from _compare(
        number, "attention block size", f"{int(printed.value):,}", seen, subject, test
    )


def _padding(number: int, printed: Printed, seen: _Seen, subject: Subject) -> Iterator[Comparison]:
    def test(plan: VllmLayout) -> _Answer:
        page_bytes = max(group.page_bytes for group in plan.groups)
        padding = 100 * (page_bytes / plan.state_bytes - 1) if plan.state_bytes else 0.0
        return f"{printed.like(padding)} %", printed.agrees(padding)

    yield from _compare(number, "padding of states", f"{printed.text} %", seen, subject, test)


def _available_blocks(plan: VllmLayout, available: Printed) -> range:
    """How many blocks the memory printed may be, which is rounded."""
    low, high = (available.value + sign * available.half_unit for sign in (-1, 1))
    return range(plan.num_blocks(int(low * _GIB)), plan.num_blocks(int(high * _GIB)) + 1)


def _reported_tokens(plan: VllmLayout, num_blocks: int, context_tokens: int | None) -> list[int]:
    """The tokens that vLLM prints for so many blocks: as it did at first, and as it does now."""
    tokens = [num_blocks // len(plan.groups) * plan.block_size]
    if context_tokens:
        tokens.append(int(plan.concurrency(num_blocks, context_tokens) * context_tokens))
    return tokens


def _blocks_of(plan: VllmLayout, tokens: int, context_tokens: int | None) -> list[int]:
    """The numbers of blocks for which vLLM prints ``tokens``."""
    groups = len(plan.groups)
    first = tokens // plan.block_size * groups
    near = set(range(first, first + groups))
    if context_tokens:
        now = int(tokens * plan.blocks(context_tokens) / context_tokens)
        near |= {now, now + 1}
    return [
        blocks
        for blocks in sorted(near)
        if tokens in _reported_tokens(plan, blocks, context_tokens)
    ]


def _tokens(number: int, seen: _Seen, subject: Subject) -> Iterator[Comparison]:
    """The cache's tokens, from the memory printed before."""
    if seen.available is None or seen.tokens is None:
        return
    available, tokens = seen.available, seen.tokens

    def test(plan: VllmLayout) -> _Answer:
        possible = _available_blocks(plan, available)
        agrees = any(blocks in possible for blocks in _blocks_of(plan, tokens, seen.context_tokens))
        low, high = (
            _reported_tokens(plan, blocks, seen.context_tokens)[-1]
            for blocks in (possible[0], possible[-1])
        )
        return f"{low:,} … {high:,}", agrees

    yield from _compare(
        number, f"tokens in {available.text} GiB", f"{tokens:,}", seen, subject, test
    )


def _concurrency(
    number: int, printed: Printed, seen: _Seen, subject: Subject
) -> Iterator[Comparison]:
    """Requests of the longest kind at once, from the tokens printed before, or the memory."""
    context_tokens = seen.context_tokens
    if not context_tokens or (seen.tokens is None and seen.available is None):
        return

    def test(plan: VllmLayout) -> _Answer:
        if seen.tokens is not None:
            possible: Sequence[int] = _blocks_of(plan, seen.tokens, context_tokens)
        else:
            assert seen.available is not None
            possible = _available_blocks(plan, seen.available)
        times = [plan.concurrency(blocks, context_tokens) for blocks in possible]
        best = min(times, key=lambda one: abs(one - printed.value), default=0.0)
        return f"{printed.like(best)}", printed.agrees(best)

    yield from _compare(
        number, f"requests of {context_tokens:,} tokens", printed.text, seen, subject, test
    )


def _blocks(
    number: int, device: int, host: int, seen: _Seen, subject: Subject
) -> Iterator[Comparison]:
    """The first engine's blocks: those of the host fill its swap space exactly."""
    seen.tokens = device * seen.settings.block_size
    swap_bytes = int(seen.swap_gib * _GIB)

    def on_host(plan: VllmLayout) -> _Answer:
        return f"{plan.num_blocks(swap_bytes):,}", plan.num_blocks(swap_bytes) == host

    if host:
        name = f"blocks in {seen.swap_gib:g} GiB of swap"
        yield from _compare(number, name, f"{host:,}", seen, subject, on_host)
    if seen.available is None:
        return
    available = seen.available

    def on_device(plan: VllmLayout) -> _Answer:
        possible = _available_blocks(plan, available)
        return f"{possible[0]:,} … {possible[-1]:,}", device in possible

    yield from _compare(
        number, f"blocks in {available.text} GiB", f"{device:,}", seen, subject, on_device
    )


def _needed(
    number: int, match: re.Match[str], seen: _Seen, subject: Subject
) -> Iterator[Comparison]:
    """The refusal to start: what the longest request needs, and how long one would fit."""
    context_tokens, needed, available = int(match[1]), Printed(match[2]), Printed(match[3])
    seen.available = available

    def need(plan: VllmLayout) -> _Answer:
        size = plan.request_bytes(context_tokens) / _GIB
        return f"{needed.like(size)} GiB", needed.agrees(size)

    yield from _compare(
        number,
        f"one request of {context_tokens:,} tokens",
        f"{needed.text} GiB",
        seen,
        subject,
        need,
    )
    if match[4] is None:
        return
    longest = int(match[4])

    def fits(plan: VllmLayout) -> _Answer:
        low, high = (
            plan.longest_context(
                int((available.value + sign * available.half_unit) * _GIB), context_tokens
            )
            for sign in (-1, 1)
        )
        return f"{low:,} … {high:,}", low <= longest <= high

    yield from _compare(
        number, f"longest request in {available.text} GiB", f"{longest:,}", seen, subject, fits
    )
