"""What goes into the engine and what comes out: tokens in, tokens (and their text) out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvikk.backends.base import SamplingParameters
from kvikk.errors import RequestError
from kvikk.text.grammars import Grammar
from kvikk.text.places import Part

MAX_LOGPROBS = 20  # the API's own

FinishReason = Literal["stop", "length", "abort", "error"]
Pooling = Literal["last", "mean"]


@dataclass(frozen=True)
class Generation:
    """How to go on from a prompt.

    An answer ends after ``max_tokens`` tokens (None: as many as fit), at a token of the model's own
    end-of-sequence set (unless ``ignore_eos``) or of ``stop_token_ids``, or where its text first
    contains one of the ``stop`` strings, which is not part of the answer; none of these but the
    first before ``min_tokens`` tokens. ``seed`` None draws one.

    ``choices`` answers are made of one prompt; each has chance of its own, and the first the same
    as if it were the only one. ``presence_penalty`` and ``frequency_penalty`` are taken off the
    logits of tokens that the answer has, once and for each time; ``repetition_penalty`` divides or
    multiplies the logits of those in prompt or answer; ``logit_bias`` is added to tokens' logits.
    Where there is a ``grammar``, an answer that ends by itself keeps to it.

    ``num_logprobs`` asks for each token's log-probability, and so many of the likeliest;
    ``num_prompt_logprobs`` for the same of the prompt's tokens, which are then all computed.
    ``shown_token_ids`` are control tokens whose names belong to the text.
    Raises RequestError, naming the parameter.
    """

    max_tokens: int | None = None
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    choices: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: Grammar | None = None
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    shown_token_ids: frozenset[int] = frozenset()

    @property
    def penalises(self) -> bool:
        """Whether tokens that were there before become less likely, or more."""
        return (
            self.presence_penalty != 0
            or self.frequency_penalty != 0
            or self.repetition_penalty != 1
        )

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise RequestError(
                f"max_tokens is {self.max_tokens}; at least 1 is needed", "max_tokens"
            )
        sampling = self.sampling
        temperature, top_k, top_p = sampling.temperature, sampling.top_k, sampling.top_p
        if not (math.isfinite(temperature) and temperature >= 0):
            raise RequestError(
                f"temperature is {temperature}; it must be 0 or a positive number", "temperature"
            )
        if top_k < 0:
            raise RequestError(f"top_k is {top_k}; it must be 0 (off) or positive", "top_k")
        if not 0 < top_p <= 1:
            raise RequestError(f"top_p is {top_p}; it must be above 0 and at most 1", "top_p")
        if not 0 <= sampling.min_p <= 1:
            raise RequestError(f"min_p is {sampling.min_p}; it must be from 0 to 1", "min_p")
        self._check_counts()
        for name in ("presence_penalty", "frequency_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise RequestError(f"{name} must be a finite number", name)
        if not 0 < self.repetition_penalty < math.inf:
            raise RequestError(
                f"repetition_penalty is {self.repetition_penalty}; it must be above 0 (1: none)",
                "repetition_penalty",
            )
        if not all(math.isfinite(bias) for _, bias in self.logit_bias):
            raise RequestError("a bias of logit_bias is no finite number", "logit_bias")
        if self.grammar is not None and self.min_tokens:
            raise RequestError(
                "a grammar says itself when an answer may end; leave min_tokens out", "min_tokens"
            )
        if not all(self.stop):
            raise RequestError("a stop string is empty; leave it out", "stop")

    def _check_counts(self) -> None:
        if self.choices < 1:
            raise RequestError(f"n is {self.choices}; at least 1 is needed", "n")
        limit = math.inf if self.max_tokens is None else self.max_tokens
        if not 0 <= self.min_tokens <= limit:
            raise RequestError(
                f"min_tokens is {self.min_tokens}; it must be from 0 to max_tokens", "min_tokens"
            )
        for name, count in (
            ("logprobs", self.num_logprobs),
            ("prompt_logprobs", self.num_prompt_logprobs),
        ):
            if count is not None and not 0 <= count <= MAX_LOGPROBS:
                raise RequestError(f"{name} is {count}; it must be 0 to {MAX_LOGPROBS}", name)


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
    ``adapter`` names one that is loaded; empty is the base model. With a ``pooling`` the prompt is
    not continued: its last hidden states are wanted as one vector (see ``pooling``).

    ``parts`` say where in the rendered prompt each piece of its conversation stands. Of lower
    ``priority`` is what goes before others. ``session`` names the conversation it is a turn of, if
    its sender did.
    """

    id: str
    prompt_token_ids: Sequence[int]
    generation: Generation = field(default_factory=Generation)
    salt: bytes = b""
    origin: Origin = Origin()
    parts: tuple[Part, ...] = ()
    priority: int = 0
    session: str = ""
    adapter: str = ""
    pooling: Pooling | None = None


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
    """Moments of one request on the monotonic clock, in seconds; None where not reached.

    ``machine_s`` is how long the machine computed for this answer, known at its end.
    """

    arrived_s: float
    scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    machine_s: float = 0.0

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


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely the model held a token: the natural logarithm, and its rank, from 1.

    ``top`` are the likeliest in its place, likeliest first.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Output:
    """What one step added to one request's answer, or to one of its answers: the ``choice``-th.

    ``token_ids`` are the new tokens, ``text`` the new text: it may lag behind the tokens, while a
    character is incomplete or while what was said may be the beginning of a stop string, and it is
    always empty in an engine without a tokenizer. An answer's last output has a ``finish_reason``,
    and an ``error`` or a ``stop_string`` where that is the reason; the last of a request
    ``ends_request`` too. A token that ends the answer counts; its text is not shown. ``usage`` is
    the answer's own.

    ``embedding``, ``[hidden_size]``, is all that a request gets which wants its prompt as a vector.
    ``refusal`` is the error of one that failed by its own fault: its adapter went a moment before
    it was queued, or its grammar grew too large.
    ``logprobs`` are the tokens', where asked for; ``prompt_logprobs`` come with a request's first
    output, for each of the prompt's tokens but the first.
    """

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None
    usage: Usage
    timings: Timings
    error: str | None = None
    stop_string: str | None = None
    choice: int = 0
    ends_request: bool = False
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    embedding: NDArray[np.float32] | None = None
    refusal: RequestError | None = None
