"""kvikk's engine, as a script would use it: ``kvikk_peer.py MODEL THREADS``.

Speculation is off: the peers' tokens are computed one by one too.
"""

import time
from importlib.metadata import version
from typing import Any

import numpy as np
from numba import njit, prange

from kvikk.engine.llm import LLM
from protocol import Amount, TokenByToken, prompt, serve

KV_MEMORY_BYTES = 2 << 30  # what vLLM is given


class Kvikk(TokenByToken):
    """One model, its cache emptied before each measure."""

    def __init__(self, model: str, threads: str) -> None:
        self._llm = LLM(
            model, threads=int(threads), kv_memory_bytes=KV_MEMORY_BYTES, speculation=False
        )
        self._seed = 0
        self._memory: np.ndarray | None = None

    def describe(self) -> dict[str, Any]:
        """Versions, and how many bytes of weights one token reads."""
        return {
            "version": f"{version('kvikk')}, numba {version('numba')}",
            "weight_bytes": self._llm.loaded.memory.weight_bytes,
        }

    def batch(self, streams: int, prompt: int, output: int) -> Amount:
        """Many prompts in one call."""
        self._llm.loaded.engine.reset_cache()
        prompts = [self._prompt(prompt) for _ in range(streams)]
        started_s = time.perf_counter()
        self._llm.generate(prompts, max_tokens=output, ignore_eos=True)
        return streams * output, time.perf_counter() - started_s

    def bandwidth(self) -> Amount:
        """The best of five readings of memory that no cache holds."""
        if self._memory is None:
            self._memory = np.ones(1 << 27, np.int64)
        seconds = []
        for _ in range(5):
            started_s = time.perf_counter()
            _sum(self._memory)
            seconds.append(time.perf_counter() - started_s)
        return self._memory.nbytes, min(seconds)

    def _prompt(self, num_tokens: int) -> list[int]:
        self._seed += 1
        return prompt(self._seed, num_tokens)

    def close(self) -> None:
        """Nothing outlives the process."""

    def token_times(self, context: int, tokens: int) -> list[float]:
        """When a prompt was handed in, and then when each token was there."""
        self._llm.loaded.engine.reset_cache()
        token_ids = self._prompt(context)
        times_s = [time.perf_counter()]
        for output in self._llm.stream(token_ids, max_tokens=tokens, ignore_eos=True):
            times_s += [time.perf_counter()] * len(output.token_ids)
        return times_s


@njit(parallel=True, fastmath=True)
def _sum(values):  # type: ignore[no-untyped-def]
    total = 0
    for index in prange(len(values)):
        total += values[index]
    return total


if __name__ == "__main__":
    serve(Kvikk)
