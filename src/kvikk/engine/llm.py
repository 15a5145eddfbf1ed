"""The engine for a script: ``LLM("smollm2").generate(["..."], max_tokens=64)``."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from kvikk.backends.base import SamplingParameters
from kvikk.engine.loading import load_engine
from kvikk.engine.options import EngineOptions
from kvikk.engine.progress_bar import ProgressBar
from kvikk.engine.requests import FinishReason, Generation, Output, Request, Timings, Usage
from kvikk.text.chat import require_chat_template


@dataclass(frozen=True)
class Completion:
    """One prompt's answer.

    ``usage.cached_tokens`` of the prompt were reused from earlier requests.
    """

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    usage: Usage
    timings: Timings

    @property
    def tokens_per_s(self) -> float | None:
        """Speed of the answer after its first token; None for an answer of one."""
        first_s, finished_s = self.timings.first_token_s, self.timings.finished_s
        if first_s is None or finished_s is None or finished_s <= first_s:
            return None
        return (self.usage.completion_tokens - 1) / (finished_s - first_s) or None


class LLM:
    """A model, loaded and ready. ``options`` are those of ``EngineOptions``.

    What one call computed, the next may reuse: the cache lives as long as this object. Raises
    ModelError if the model cannot be loaded.
    """

    def __init__(self, model: str = "smollm2", **options: Any) -> None:
        # A script hands in its whole batch at once: nobody is there to be told "busy".
        options.setdefault("max_queue", sys.maxsize)
        self.loaded = load_engine(EngineOptions(model=model, **options))
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
    ) -> list[Completion]:
        """Continue each prompt, a text or its token ids; answers come in the prompts' order.

        Raises RequestError, before anything is computed, if a prompt or a parameter is unusable,
        and RuntimeError if the backend fails.
        """
        texts = [prompts] if isinstance(prompts, str) else prompts
        generation = Generation(
            max_tokens=max_tokens,
            sampling=SamplingParameters(temperature, top_k, top_p),
            seed=seed,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            ignore_eos=ignore_eos,
        )
        encode = self.loaded.tokenizer.encode
        return self._run(
            [tuple(encode(prompt) if isinstance(prompt, str) else prompt) for prompt in texts],
            generation,
        )

    def chat(self, messages: Sequence[Mapping[str, Any]], **parameters: Any) -> Completion:
        """The assistant's answer to a conversation; ``parameters`` are those of ``generate``."""
        template = require_chat_template(self.loaded.chat_template, self.loaded.model)
        prompt = template.render(messages)
        token_ids = self.loaded.tokenizer.encode(prompt, add_bos=False)
        return self.generate([token_ids], **parameters)[0]

    def _run(self, prompts: list[tuple[int, ...]], generation: Generation) -> list[Completion]:
        engine = self.loaded.engine
        requests = [Request(str(next(self._ids)), prompt, generation) for prompt in prompts]
        for request in requests:
            engine.check(request)
        for request in requests:
            engine.add(request)
        answers: dict[str, list[Output]] = {request.id: [] for request in requests}
        try:
            with ProgressBar(len(requests)) as bar:
                while engine.has_work:
                    for output in engine.step():
                        answers[output.request_id].append(output)
                        bar.update(len(output.token_ids), output.finish_reason is not None)
        finally:
            for request in requests:  # an interrupt leaves nothing behind
                engine.abort(request.id)
            if engine.has_work:
                engine.step()
        return [_completion(request, answers[request.id]) for request in requests]


def _completion(request: Request, outputs: list[Output]) -> Completion:
    last = outputs[-1]
    if last.finish_reason is None or last.error is not None:
        raise RuntimeError(last.error or "the answer never ended")
    return Completion(
        tuple(request.prompt_token_ids),
        tuple(token_id for output in outputs for token_id in output.token_ids),
        "".join(output.text for output in outputs),
        last.finish_reason,
        last.usage,
        last.timings,
    )
