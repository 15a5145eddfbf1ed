"""transformers' ``generate``: ``transformers_peer.py FOLDER THREADS``."""

import time
from importlib.metadata import version
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from protocol import TokenByToken, prompt, serve


class Clock:
    """A streamer that notes when each token comes."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def put(self, token_ids: torch.Tensor) -> None:
        """Called with the prompt at the beginning, then with each token."""
        self.times_s.append(time.perf_counter())

    def end(self) -> None:
        """Nothing is held back."""


class Transformers(TokenByToken):
    """One model in bfloat16, with its own cache."""

    def __init__(self, folder: str, threads: str) -> None:
        torch.set_num_threads(int(threads))
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        self._seed = 0

    def describe(self) -> dict[str, Any]:
        """Its version and torch's."""
        return {"version": f"{version('transformers')}, torch {torch.__version__}"}

    def close(self) -> None:
        """Nothing outlives the process."""

    @torch.inference_mode()
    def token_times(self, context: int, tokens: int) -> list[float]:
        """When a prompt was handed in, and then when each token was there."""
        self._seed += 1
        token_ids = torch.tensor([prompt(self._seed, context)])
        clock = Clock()
        self._model.generate(
            token_ids,
            attention_mask=torch.ones_like(token_ids),
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            streamer=clock,
        )
        return clock.times_s


if __name__ == "__main__":
    serve(Transformers)
