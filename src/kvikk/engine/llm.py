"""The engine for a script: ``LLM("smollm2").generate(["..."], max_tokens=64)``."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from operator import index
from typing import Any

from kvikk.backends.base import SamplingParameters
from kvikk.engine.loading import Progress, load_engine
from kvikk.engine.options import EngineOptions
from kvikk.engine.progress_bar import ProgressBar
from kvikk.engine.requests import (
    FinishReason,
    Generation,
    Output,
    Request,
    Timings,
    TokenLogprob,
    Usage,
)
from kvikk.errors import RequestError
from kvikk.text.chat import require_chat_template


@dataclass(frozen=True)
class Completion:
    """One prompt's answer.

    ``usage.cached_tokens`` of the prompt were reused from earlier requests. ``logprobs`` are the
    tokens', where they were asked for.
    """

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def tokens_per_s(self) -> float | None:
        """Speed of the answer after its first token; None for an answer of one."""
        return self.timings.tokens_per_s(self.usage.completion_tokens)


class LLM:
    """A model, loaded and ready. ``options`` are those of ``EngineOptions``;
    ``progress`` is told in a few words what goes on while it loads.

    What one call computed, the next may reuse: the cache lives as long as this object. Raises
    ModelError if the model cannot be loaded.
    """

    def __init__(
        self, model: str = "smollm2", *, progress: Progress | None = None, **options: Any
    ) -> None:
        # A script hands in its whole batch at once: nobody is there to be told "busy".
        options.setdefault("max_queue", sys.maxsize)
        engine_options = EngineOptions(model=model, **options)
        self.loaded = load_engine(engine_options, progress or (lambda line: None))
        self._ids = count()

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        *,
        max_tokens: int | None = 64,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        ignore_eos: bool = False,
        adapter: str = "",
        **more: Any,
    ) -> list[Completion]:
        """Continue each prompt, a text or its token ids; answers come in the prompts' order.

        ``adapter`` names one of the engine's. ``more`` are ``min_p`` and further fields
        of ``Generation``, such as ``presence_penalty`` or ``choices``: where that is above 1, a
        prompt's answers follow each other.

        Raises RequestError, before anything is computed, if a prompt or a parameter is unusable,
        and RuntimeError if the backend fails.
        """
        texts = [prompts] if isinstance(prompts, str) else prompts
        generation = _generation(
            max_tokens, temperature, top_k, top_p, seed, stop, ignore_eos, **more
        )
        requests = [self._request(prompt, generation, adapter) for prompt in texts]
        answers: dict[tuple[str, int], list[Output]] = {
            (request.id, choice): [] for request in requests for choice in range(generation.choices)
        }
        with ProgressBar(len(answers)) as bar:
            for output in self._outputs(requests):
                answers[output.request_id, output.choice].append(output)
                bar.update(len(output.token_ids), output.finish_reason is not None)
        prompts_by_id = {request.id: tuple(request.prompt_token_ids) for request in requests}
        return [
            completion(prompts_by_id[request_id], outputs)
            for (request_id, _), outputs in answers.items()
        ]

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = 64,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        ignore_eos: bool = False,
        adapter: str = "",
        **more: Any,
    ) -> Iterator[Output]:
        """Continue one prompt, step by step; parameters and errors as in ``generate``.

        The last output has a finish reason and the whole usage. Leaving early ends the request.
        """
        generation = _generation(
            max_tokens, temperature, top_k, top_p, seed, stop, ignore_eos, **more
        )
        for output in self._outputs([self._request(prompt, generation, adapter)]):
            if output.error is not None:
                raise output.refusal or RuntimeError(output.error)
            yield output

    def chat(self, messages: Sequence[Mapping[str, Any]], **parameters: Any) -> Completion:
        """The assistant's answer to a conversation; ``parameters`` are those of ``generate``."""
        return self.generate([self.chat_prompt(messages)], **parameters)[0]

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """A conversation as the tokens of the one prompt it makes, for ``generate``, ``stream``.

        Raises RequestError if the model has no chat template or the template refuses.
        """
        template = require_chat_template(self.loaded.chat_template, self.loaded.model)
        return tuple(self.loaded.tokenizer.encode(template.render(messages), add_bos=False))

    def _request(
        self, prompt: str | Sequence[int], generation: Generation, adapter: str
    ) -> Request:
        ids = self.loaded.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        try:
            token_ids = tuple(map(index, ids))
        except TypeError:
            raise RequestError(
                f"{prompt!r:.60} is no prompt; expected a text or a list of token ids, "
                "and a list of those for several",
                "prompts",
            ) from None
        return Request(str(next(self._ids)), token_ids, generation, adapter=adapter)

    def _outputs(self, requests: Sequence[Request]) -> Iterator[Output]:
        """Run these requests to their ends. Whoever stops listening leaves nothing behind."""
        engine = self.loaded.engine
        is_streaming = engine.has_work  # a variable, else mypy takes the loop below for dead
        if is_streaming:
            raise RuntimeError("another answer is still being streamed; finish or close it first")
        for request in requests:
            engine.check(request)
        try:
            for request in requests:
                engine.add(request)
            while engine.has_work:
                yield from engine.step()
        finally:
            for request in requests:
                engine.abort(request.id)
            if engine.has_work:
                engine.step()


def _generation(
    max_tokens: int | None,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int | None,
    stop: str | Sequence[str],
    ignore_eos: bool,
    *,
    min_p: float = 0.0,
    **more: Any,
) -> Generation:
    return Generation(
        max_tokens=max_tokens,
        sampling=SamplingParameters(temperature, top_k, top_p, min_p),
        seed=seed,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        ignore_eos=ignore_eos,
        **more,
    )


def completion(prompt_token_ids: tuple[int, ...], outputs: list[Output]) -> Completion:
    """The whole that one answer's outputs make.

    Raises RequestError if it failed by its own fault, and RuntimeError if not.
    """
    last = outputs[-1]
    if last.finish_reason is None or last.error is not None:
        raise last.refusal or RuntimeError(last.error or "the answer never ended")
    return Completion(
        prompt_token_ids,
        tuple(token_id for output in outputs for token_id in output.token_ids),
        "".join(output.text for output in outputs),
        last.finish_reason,
        last.usage,
        last.timings,
        tuple(told for output in outputs for told in output.logprobs),
    )
