"""Engines over the exact backend, and ways to run them to the end."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvikk.backends.base import Plan
from kvikk.engine.engine import Engine
from kvikk.engine.requests import Generation, Output, Request, TokenLogprob
from kvikk.engine.speculation import Speculation
from tests.engine.exact_backend import VOCABULARY_SIZE, ExactBackend, groups


@dataclass
class Answer:
    """All that one request got."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    last: Output | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    embedding: NDArray[np.float32] | None = None

    def take(self, output: Output) -> None:
        assert self.last is None, "an output after the last one"
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        if output.prompt_logprobs is not None:
            assert self.prompt_logprobs is None, "told twice"
            self.prompt_logprobs = output.prompt_logprobs
        self.text += output.text
        self.embedding = output.embedding
        assert output.usage.completion_tokens == len(self.token_ids)
        if output.finish_reason is not None:
            self.last = output

    @property
    def finish_reason(self) -> str | None:
        return None if self.last is None else self.last.finish_reason


def plan(
    *,
    windows: Sequence[int | None] = (None,),
    num_blocks: Sequence[int] = (64,),
    block_size: int = 4,
    step_tokens: int = 16,
    max_running: int = 8,
    max_context_tokens: int = 64,
    max_rows: int = 8,
) -> Plan:
    return Plan(
        groups(*windows),
        tuple(num_blocks),
        block_size,
        "f32",
        max_batch_tokens=step_tokens,
        max_batch_sequences=max(max_rows, max_running),
        max_context_tokens=max_context_tokens,
    )


def make_engine(
    *,
    step_tokens: int = 16,
    max_running: int = 8,
    max_queue: int = 10_000,
    prefix_caching: bool = True,
    use_cache: bool = True,
    speculation: Speculation | None = None,
    tenant_share: float = 0.0,
    **sizes: Any,
) -> tuple[Engine, ExactBackend]:
    shape = plan(step_tokens=step_tokens, max_running=max_running, **sizes)
    backend = ExactBackend()
    backend.load(None, shape)
    engine = Engine(
        backend,
        shape,
        model_digest=b"exact",
        vocabulary_size=VOCABULARY_SIZE,
        prefix_caching=prefix_caching,
        use_cache=use_cache,
        step_tokens=step_tokens,
        max_running=max_running,
        max_queue=max_queue,
        speculation=speculation,
        tenant_share=tenant_share,
    )
    return engine, backend


def run(engine: Engine, requests: Iterable[Request] = ()) -> dict[str, Answer]:
    """Add requests and step until all is done, checking the cache after every step."""
    answers: dict[str, Answer] = {}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        step(engine, answers)
    return answers


def step(engine: Engine, answers: dict[str, Answer]) -> list[Output]:
    outputs = engine.step()
    for output in outputs:
        name = answer_name(output.request_id, output.choice)
        answers.setdefault(name, Answer()).take(output)
    engine.cache.check()
    return outputs


def answer_name(request_id: str, choice: int) -> str:
    """The first answer has its request's name."""
    return f"{request_id}/{choice}" if choice else request_id


def request(
    name: str, prompt: Iterable[int], max_tokens: int | None = 8, salt: bytes = b"", **more: object
) -> Request:
    generation = Generation(max_tokens=max_tokens, **more)  # type: ignore[arg-type]
    return Request(name, tuple(prompt), generation, salt)


def live_blocks(engine: Engine) -> int:
    return engine.cache.usage().live_blocks
