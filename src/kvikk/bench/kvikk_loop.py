"""Our engine, driven a step at a time; nothing is guessed ahead, since that is another gain."""

import time
from collections.abc import Callable, Sequence
from itertools import count

from kvikk import __version__
from kvikk.bench.loops import Generated, LoopOptions
from kvikk.engine.engine import Engine
from kvikk.engine.loading import LoadedEngine, load_engine
from kvikk.engine.options import EngineOptions
from kvikk.engine.requests import Generation, Output, Request


class KvikkLoop:
    """``most_tokens`` is the longest sequence that will be asked for, ``most_sequences`` at once.

    Raises ModelError if the model cannot be loaded or so much does not fit.
    """

    name = "kvikk"

    def __init__(
        self,
        options: LoopOptions,
        *,
        most_tokens: int,
        most_sequences: int,
        progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.loaded: LoadedEngine = load_engine(
            EngineOptions(
                model=options.model,
                backend=options.backend,  # type: ignore[arg-type]  # checked by EngineOptions
                threads=options.threads,
                kv_dtype=options.dtype,
                # The last token of an answer takes no place, but a prompt must leave one free.
                max_context_tokens=most_tokens + 1,
                max_running=most_sequences,
                prefix_caching=False,
                speculation=False,
            ),
            progress,
        )
        self._engine: Engine = self.loaded.engine
        self._ids = count()
        self.weight_bytes = self.loaded.memory.weight_bytes
        self.description = (
            f"{__version__}, {_backend_name(self.loaded.backend, options.threads)}, "
            f"weights as in the file, KV in {options.dtype}"
        )

    def generate(self, prompt: Sequence[int], new_tokens: int, *, use_cache: bool) -> Generated:
        """See ``Loop``; without the cache, each token is computed with all before it."""
        self._engine.use_cache = use_cache
        counted_before = self._engine.stats().computed_tokens
        token_ids: list[int] = []
        start_s = time.perf_counter()
        self._add(prompt, new_tokens)
        while self._engine.has_work:
            for output in self._engine.step():
                self._check(output)
                token_ids += output.token_ids
        seconds = time.perf_counter() - start_s
        computed_tokens = self._engine.stats().computed_tokens - counted_before
        self._engine.use_cache = True
        return Generated(tuple(token_ids), seconds, computed_tokens)

    def prefill_s(self, prompt: Sequence[int]) -> float:
        """See ``Loop``."""
        return self.generate(prompt, 1, use_cache=True).seconds

    def decode_s(self, prompts: Sequence[Sequence[int]], steps: int) -> float:
        """See ``Loop``. Answers have no end but the context's: they are cut off."""
        waiting = {self._add(prompt, None) for prompt in prompts}
        names = tuple(waiting)
        while waiting:
            outputs = self._engine.step()
            waiting.difference_update(output.request_id for output in outputs)
        # From here on every step is one token for each.
        start_s = time.perf_counter()
        for _ in range(steps):
            outputs = self._engine.step()
            assert len(outputs) == len(prompts), "an answer ended while it was being timed"
        seconds = time.perf_counter() - start_s
        for name in names:
            self._engine.abort(name)
        self._engine.step()
        return seconds / steps

    def _add(self, prompt: Sequence[int], new_tokens: int | None) -> str:
        name = str(next(self._ids))
        generation = Generation(max_tokens=new_tokens, ignore_eos=True)
        self._engine.add(Request(name, tuple(prompt), generation))
        return name

    @staticmethod
    def _check(output: Output) -> None:
        if output.error is not None:
            raise RuntimeError(output.error)


def _backend_name(backend: str, threads: int | None) -> str:
    """The backend and, where it has any say, its threads."""
    if backend == "reference":
        return "reference backend"
    from kvikk.backends.cpu.jit import available_threads

    available: int = available_threads()
    return f"{backend} backend, {min(threads or available, available)} threads"
