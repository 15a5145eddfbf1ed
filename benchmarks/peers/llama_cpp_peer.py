"""llama.cpp in a Python process: ``llama_cpp_peer.py MODEL.gguf THREADS``."""

import time
from typing import Any

import llama_cpp

from protocol import Amount, prompt, serve

CONTEXT_TOKENS = 4352


class LlamaCpp:
    """One model with flash attention; logits are computed, nothing is sampled."""

    def __init__(self, model: str, threads: str) -> None:
        self._model = llama_cpp.Llama(
            model,
            n_ctx=CONTEXT_TOKENS,
            n_threads=int(threads),
            n_threads_batch=int(threads),
            flash_attn=True,
            verbose=False,
        )
        self._seed = 0

    def describe(self) -> dict[str, Any]:
        """The version of the Python package, which names one of llama.cpp."""
        return {"version": f"llama-cpp-python {llama_cpp.__version__}"}

    def close(self) -> None:
        """Nothing outlives the process."""

    def prefill(self, tokens: int) -> Amount:
        """One call for the whole prompt."""
        token_ids = self._begin(tokens)
        started_s = time.perf_counter()
        self._model.eval(token_ids)
        return tokens, time.perf_counter() - started_s

    def decode(self, context: int, tokens: int) -> Amount:
        """One call a token."""
        token_ids = self._begin(context + tokens)
        self._model.eval(token_ids[:context])
        started_s = time.perf_counter()
        for token_id in token_ids[context:]:
            self._model.eval([token_id])
        return tokens, time.perf_counter() - started_s

    def _begin(self, num_tokens: int) -> list[int]:
        self._model.reset()
        self._seed += 1
        return prompt(self._seed, num_tokens)


if __name__ == "__main__":
    serve(LlamaCpp)
