"""vLLM's CPU build: ``vllm_peer.py FOLDER THREADS``."""

import os
import time
from typing import Any

os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process: no messages between two
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
}

from protocol import Amount, TokenByToken, prompt, serve

CONTEXT_TOKENS = 8192
SEQUENCES = 32


class Vllm(TokenByToken):
    """One model in bfloat16, its cache emptied before each measure."""

    def __init__(self, folder: str, threads: str) -> None:
        os.environ["OMP_NUM_THREADS"] = threads
        import vllm

        self._vllm = vllm
        self._llm = vllm.LLM(
            folder,
            dtype="bfloat16",
            max_model_len=CONTEXT_TOKENS,
            max_num_seqs=SEQUENCES,
            enable_prefix_caching=True,
        )
        self._seed = 0

    def describe(self) -> dict[str, Any]:
        """Its version."""
        return {"version": str(self._vllm.__version__)}

    def batch(self, streams: int, prompt: int, output: int) -> Amount:
        """Many prompts in one call."""
        prompts = [self._prompt(prompt) for _ in range(streams)]
        started_s = time.perf_counter()
        self._llm.generate(prompts, self._parameters(output), use_tqdm=False)
        return streams * output, time.perf_counter() - started_s

    def _prompt(self, num_tokens: int) -> Any:
        self._seed += 1
        return {"prompt_token_ids": prompt(self._seed, num_tokens)}

    def _parameters(self, num_tokens: int) -> Any:
        return self._vllm.SamplingParams(
            temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False
        )

    def close(self) -> None:
        """Nothing outlives the process."""

    def token_times(self, context: int, tokens: int) -> list[float]:
        """When a prompt was handed in, and then when each token was there."""
        self._llm.reset_prefix_cache()
        engine = self._llm.llm_engine
        what, parameters = self._prompt(context), self._parameters(tokens)
        times_s = [time.perf_counter()]
        engine.add_request(str(self._seed), what, parameters)
        while engine.has_unfinished_requests():
            for output in engine.step():
                num_new = len(output.outputs[0].token_ids) + 1 - len(times_s)
                times_s += [time.perf_counter()] * num_new
        return times_s


if __name__ == "__main__":
    serve(Vllm)
