"""The engine inside somebody's own event loop: ``async for output in llm.stream(prompt)``.

A thread of its own computes; what it brings crosses over to the loop. Requests run together, as in
a server, and leaving an iteration early ends its request.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Any

from kvikk.engine.llm import Completion, completion
from kvikk.engine.loading import LoadedEngine, Progress, load_engine
from kvikk.engine.options import EngineOptions
from kvikk.engine.requests import Generation, Output, Request
from kvikk.engine.worker import EngineWorker
from kvikk.text.chat import require_chat_template


class AsyncLLM:
    """A loaded model, used from one event loop. ``async with`` ends it; so does ``close``.

    Make one with ``await AsyncLLM.load("smollm2")``.
    """

    def __init__(self, loaded: LoadedEngine) -> None:
        self.loaded = loaded
        self._worker = EngineWorker(loaded.engine)
        self._ids = count()

    @classmethod
    async def load(
        cls, model: str = "smollm2", *, progress: Progress | None = None, **options: Any
    ) -> "AsyncLLM":
        """Load a model beside the loop; ``options`` are those of ``EngineOptions``.

        Raises ModelError if it cannot be loaded.
        """
        engine_options = EngineOptions(model=model, **options)
        return cls(await asyncio.to_thread(load_engine, engine_options, progress or _say_nothing))

    async def stream(
        self, prompt: str | Sequence[int], generation: Generation | None = None
    ) -> AsyncIterator[Output]:
        """Continue one prompt, a text or its token ids, step by step.

        The last output ``ends_request``. Raises RequestError if the request makes no sense,
        BusyError if as many are running and waiting as may, RuntimeError if the backend fails.
        """
        loop, outputs = asyncio.get_running_loop(), asyncio.Queue[Output]()
        ids = self.loaded.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        request = Request(f"async-{next(self._ids)}", tuple(ids), generation or Generation())

        def listen(output: Output) -> None:  # in the engine's thread
            loop.call_soon_threadsafe(outputs.put_nowait, output)

        self._worker.submit(request, listen)
        ended = False
        try:
            while not ended:
                output = await outputs.get()
                ended = output.ends_request
                if output.error is not None:
                    raise output.refusal or RuntimeError(output.error)
                yield output
        finally:
            if not ended:
                self._worker.abort(request.id)

    async def generate(
        self, prompt: str | Sequence[int], generation: Generation | None = None
    ) -> list[Completion]:
        """Continue one prompt to the end: its answers, one for each of ``generation.choices``."""
        generation = generation or Generation()
        ids = self.loaded.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        answers: list[list[Output]] = [[] for _ in range(generation.choices)]
        async for output in self.stream(ids, generation):
            answers[output.choice].append(output)
        return [completion(tuple(ids), outputs) for outputs in answers]

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], generation: Generation | None = None
    ) -> Completion:
        """The assistant's answer to a conversation.

        Raises RequestError if the model has no chat template or the template refuses.
        """
        template = require_chat_template(self.loaded.chat_template, self.loaded.model)
        ids = self.loaded.tokenizer.encode(template.render(messages), add_bos=False)
        return (await self.generate(ids, generation))[0]

    async def close(self) -> None:
        """End what runs, and the thread."""
        await asyncio.to_thread(self._worker.stop)

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def _say_nothing(line: str) -> None:
    pass
