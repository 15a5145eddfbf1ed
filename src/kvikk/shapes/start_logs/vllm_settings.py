"""How vLLM was started, as far as its log tells, and how it may have been started for the rest."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from kvikk.shapes.dtypes import KvDtypes, kv_dtypes
from kvikk.shapes.reserve.records import layers_of
from kvikk.shapes.reserve.vllm import VllmLayout, VllmSettings, layout
from kvikk.shapes.shape import ModelShape
from kvikk.shapes.start_logs.records import Printed, Subject

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


@dataclass(frozen=True)
class Guess:
    """One way in which the log's figures may have come about, in words where not the usual."""

    plan: VllmLayout
    words: str


@dataclass
class Seen:
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


def guesses(seen: Seen, subject: Subject) -> Iterator[Guess]:
    """Ways in which the model may have been started that the log does not exclude.

    The usual one first, then by how many settings differ from it.
    """

    def others(name: str, usual: int, values: Sequence[int]) -> list[int]:
        return [usual] if name in seen.stated else [usual, *(set(values) - {usual})]

    settings = seen.settings
    shapes: list[tuple[str, ModelShape]] = [("", subject.shape), *subject.variants]
    has_windows = any(layer.window_tokens for layer in subject.shape.layers)
    has_states = any(layer.state for layer in subject.shape.layers)
    step_tokens = settings.max_num_batched_tokens
    steps = others("step", step_tokens, (2048, 4096, 16384, 32768))
    if "step" in seen.stated:  # asynchronous scheduling has the next step in flight
        steps.append(2 * step_tokens)
    drafted = others("drafted", settings.speculative_tokens, (1, 2, 3, 4))
    choices = product(
        shapes,
        [settings.hybrid, False] if has_windows and settings.hybrid else [settings.hybrid],
        (1, 2) if has_states else (1,),
        others("block", settings.block_size, (32, 64, 128)),
        steps if has_windows else steps[:1],
        drafted if has_states else drafted[:1],
    )
    found: list[tuple[int, int, list[str], ModelShape, VllmSettings]] = []
    for (form, shape), hybrid, states, block, step, draft in choices:
        words = [form] if form else []
        words += ["windows counted as full attention"] if hybrid != settings.hybrid else []
        words += ["two states a request, for prefix caching"] if states == 2 else []
        words += [f"block size {block}"] if block != settings.block_size else []
        words += [f"steps of {step:,} tokens in flight"] if step != step_tokens else []
        words += [f"{draft} speculative tokens"] if draft != settings.speculative_tokens else []
        chosen = VllmSettings(
            block_size=block,
            max_num_batched_tokens=step,
            speculative_tokens=draft,
            state_blocks=states,
            hybrid=hybrid,
        )
        found.append((len(words), len(found), words, shape, chosen))
    for _, _, words, shape, chosen in sorted(found, key=lambda guess: guess[:2]):
        layers = layers_of(shape, seen.dtypes, tp=seen.tp, dp_attention=subject.dp_attention)
        plan = layout(layers, chosen)
        if plan is not None:
            yield Guess(plan, ", ".join(words))
