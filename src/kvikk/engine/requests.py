"""What goes into the engine and what comes out: tokens in, tokens (and their text) out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from kvikk.backends.base import SamplingParameters
from kvikk.errors import RequestError
from kvikk.text.places import Part

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class Generation:
    """How to go on from a prompt.

    An answer ends after ``max_tokens`` tokens (None: as many as fit), at a token of the model's own
    end-of-sequence set (unless ``ignore_eos``) or of ``stop_token_ids``, or where its text first
    contains one of the ``stop`` strings, which is not part of the answer. ``seed`` None draws one.
    Raises RequestError, naming the parameter.
    """

    max_tokens: int | None = None
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise RequestError(
                f"max_tokens is {self.max_tokens}; at least 1 is needed", "max_tokens"
            )
        temperature, top_k, top_p = (
            self.sampling.temperature,
            self.sampling.top_k,
            self.sampling.top_p,
        )
        if not (math.isfinite(temperature) and temperature >= 0):
            raise RequestError(
                f"temperature is {temperature}; it must be 0 or a positive number", "temperature"
            )
        if top_k < 0:
            raise RequestError(f"top_k is {top_k}; it must be 0 (off) or positive", "top_k")
        if not 0 < top_p <= 1:
            raise RequestError(f"top_p is {top_p}; it must be above 0 and at most 1", "top_p")
        if not all(self.stop):
            raise RequestError("a stop string is empty; leave it out", "stop")


@dataclass(frozen=True)
class Origin:
    """Who asked, and how: what totals can be told apart by. Names, never secrets."""

    tenant: str = ""
    key: str = ""
    route: str = ""
    model: str = ""


@dataclass(frozen=True)
class Request:
    """One prompt to continue. ``salt`` parts tenants: different salts never share a block.

    ``parts`` say where in the rendered prompt each piece of its conversation stands.
    """

    id: str
    prompt_token_ids: Sequence[int]
    generation: Generation = field(default_factory=Generation)
    salt: bytes = b""
    origin: Origin = Origin()
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Usage:
    """Tokens of one request so far.

    ``cached_tokens`` of the ``prompt_tokens`` were found computed when the request was first
    admitted; what a preempted request computes again is counted nowhere here.
    """

    prompt_tokens: int
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True)
class Timings:
    """Moments of one request on the monotonic clock, in seconds; None where not reached."""

    arrived_s: float
    scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None

    @property
    def prefill_s(self) -> float | None:
        """From the first step that held the request to its first token."""
        if self.scheduled_s is None or self.first_token_s is None:
            return None
        return self.first_token_s - self.scheduled_s

    def tokens_per_s(self, num_tokens: int) -> float | None:
        """Speed of an answer of ``num_tokens`` after its first; None where that was all."""
        if self.first_token_s is None or self.finished_s is None or num_tokens < 2:
            return None
        return (num_tokens - 1) / max(self.finished_s - self.first_token_s, 1e-9)


@dataclass(frozen=True)
class Output:
    """What one step added to one request.

    ``token_ids`` are the new tokens, ``text`` the new text: it may lag behind the tokens, while a
    character is incomplete or while what was said may be the beginning of a stop string, and it is
    always empty in an engine without a tokenizer. The last output has a ``finish_reason``, and an
    ``error`` where that is the reason. A token that ends the answer counts; its text is not shown.
    """

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None
    usage: Usage
    timings: Timings
    error: str | None = None
