"""What timing needs of an engine: greedy generation both ways, prefill and decode apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kvikk.errors import RequestError

ENGINES = ("kvikk", "transformers")
DTYPES = ("f32", "bf16")
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Generated:
    """One generation. ``computed_tokens`` are the positions the model was run on, as counted."""

    token_ids: tuple[int, ...]
    seconds: float
    computed_tokens: int


class Loop(Protocol):
    """An engine with a model loaded, one request at a time.

    ``description`` says with what it computes. ``weight_bytes`` is what one pass reads at least.
    """

    name: str
    description: str
    weight_bytes: int

    def generate(self, prompt: Sequence[int], new_tokens: int, *, use_cache: bool) -> Generated:
        """Go on greedily for ``new_tokens`` tokens, whatever they are, from nothing."""

    def prefill_s(self, prompt: Sequence[int]) -> float:
        """Seconds from a prompt that nothing is known of to its first token."""

    def decode_s(self, prompts: Sequence[Sequence[int]], steps: int) -> float:
        """Seconds a step, each a token for every prompt, over ``steps`` steps behind the first."""


@runtime_checkable
class Judge(Protocol):
    """An engine that can say how near a decision between two tokens was."""

    def gap(self, token_ids: Sequence[int], one: int, other: int) -> float:
        """By how much the logit of ``one`` is above that of ``other`` behind ``token_ids``."""


@dataclass(frozen=True)
class LoopOptions:
    """What to measure with. Raises RequestError for a value that makes no sense.

    ``dtype`` is that of transformers' weights and arithmetic, and of our keys and values (our
    weights stay what they are in the file). ``threads`` None: every core.
    """

    model: str
    engines: tuple[str, ...] = ("kvikk",)
    device: str = "cpu"
    dtype: str = "f32"
    threads: int | None = None
    backend: str = "auto"

    def __post_init__(self) -> None:
        if not self.engines:
            raise RequestError(f"no engine is named; choose from {', '.join(ENGINES)}", "engine")
        for name in self.engines:
            if name not in ENGINES:
                raise RequestError(f"engine {name!r} is not one of {', '.join(ENGINES)}", "engine")
            if self.engines.count(name) > 1:
                raise RequestError(f"engine {name!r} is named twice; once is enough", "engine")
        if self.dtype not in DTYPES:
            raise RequestError(f"data type {self.dtype!r} is not one of {', '.join(DTYPES)}")
        if self.device not in DEVICES:
            raise RequestError(f"device {self.device!r} is not one of {', '.join(DEVICES)}")
        if self.device == "cuda" and "transformers" not in self.engines:
            raise RequestError(
                "our engine computes on the CPU; on cuda, --engine transformers runs"
            )
        if self.backend != "auto" and "kvikk" not in self.engines:
            raise RequestError("a backend is our engine's; leave --backend out or add kvikk")


def check_positive(name: str, values: Sequence[int]) -> None:
    """Raise RequestError unless there are ``values`` and all are at least 1."""
    if not values or min(values) < 1:
        raise RequestError(f"{name}: {', '.join(map(str, values)) or 'none'}; at least 1 is needed")
