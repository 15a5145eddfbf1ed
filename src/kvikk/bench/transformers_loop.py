"""The textbook loop: transformers, one forward pass a token, the cache one argument of it."""

import inspect
import io
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from typing import Any

from kvikk.bench.loops import Generated, LoopOptions
from kvikk.errors import ModelError
from kvikk.files.sources import ModelSource, resolve


class TransformersLoop:
    """The same files in transformers, a GGUF file's weights widened to ``dtype``.

    Raises ModelError if transformers cannot read them or there is no such device.
    """

    name = "transformers"

    def __init__(
        self, options: LoopOptions, progress: Callable[[str], None] = lambda line: None
    ) -> None:
        import torch
        import transformers

        if options.device == "cuda" and not torch.cuda.is_available():
            raise ModelError("there is no CUDA device here; leave --device out")
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        self._torch = torch
        self._device = torch.device(options.device)
        dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[options.dtype]
        progress("reading the weights")
        source = resolve(options.model)
        self._model = _load(source, dtype).to(self._device).eval()
        parameters = inspect.signature(type(self._model).forward).parameters
        # Renamed in the course of transformers 5.
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self.weight_bytes = sum(
            parameter.numel() * parameter.element_size() for parameter in self._model.parameters()
        )
        where = (
            torch.cuda.get_device_name()
            if options.device == "cuda"
            else f"CPU, {torch.get_num_threads()} threads"
        )
        self.description = (
            f"{transformers.__version__}, torch {torch.__version__} on {where}, "
            f"weights and KV in {options.dtype}"
        )

    def generate(self, prompt: Sequence[int], new_tokens: int, *, use_cache: bool) -> Generated:
        """See ``Loop``; without the cache, the whole sequence goes in for each token."""
        torch = self._torch
        with torch.inference_mode():
            self._wait()
            start_s = time.perf_counter()
            token_ids = torch.tensor([list(prompt)], device=self._device)
            cache = self._empty_cache() if use_cache else {}
            computed_tokens = 0
            for step in range(new_tokens):
                fed = token_ids[:, -1:] if use_cache and step else token_ids
                computed_tokens += fed.shape[1]
                out = self._model(fed, use_cache=use_cache, **cache)
                token_ids = torch.cat([token_ids, out.logits[:, -1:].argmax(-1)], dim=-1)
            self._wait()
            seconds = time.perf_counter() - start_s
        return Generated(tuple(token_ids[0, len(prompt) :].tolist()), seconds, computed_tokens)

    def prefill_s(self, prompt: Sequence[int]) -> float:
        """See ``Loop``; the head computes the last position only, as an engine's would."""
        torch = self._torch
        with torch.inference_mode():
            self._wait()
            start_s = time.perf_counter()
            token_ids = torch.tensor([list(prompt)], device=self._device)
            out = self._model(token_ids, logits_to_keep=1, **self._empty_cache())
            out.logits.argmax(-1).tolist()
            return time.perf_counter() - start_s

    def decode_s(self, prompts: Sequence[Sequence[int]], steps: int) -> float:
        """See ``Loop``; all ``prompts`` have one length."""
        torch = self._torch
        with torch.inference_mode():
            token_ids = torch.tensor([list(prompt) for prompt in prompts], device=self._device)
            cache = self._empty_cache()
            out = self._model(token_ids, logits_to_keep=1, **cache)
            self._wait()
            start_s = time.perf_counter()
            for _ in range(steps):
                fed = out.logits[:, -1:].argmax(-1)
                out = self._model(fed, **cache)
            self._wait()
            return (time.perf_counter() - start_s) / steps

    def gap(self, token_ids: Sequence[int], one: int, other: int) -> float:
        """By how much the logit of ``one`` is above that of ``other`` behind ``token_ids``."""
        torch = self._torch
        with torch.inference_mode():
            fed = torch.tensor([list(token_ids)], device=self._device)
            logits = self._model(fed, logits_to_keep=1).logits[0, -1].float()
            return float(logits[one] - logits[other])

    def _empty_cache(self) -> dict[str, Any]:
        """A cache as the model's argument; it grows in place with every call."""
        from transformers import DynamicCache

        return {self._cache_argument: DynamicCache(config=self._model.config)}

    def _wait(self) -> None:
        if self._device.type == "cuda":
            self._torch.cuda.synchronize()


def _load(source: ModelSource, dtype: Any) -> Any:
    """The model in ``source`` as transformers has it."""
    import transformers

    talk: Any = transformers.logging
    talk.set_verbosity_error()
    talk.disable_progress_bar()
    folder, more = source.path, {}
    if source.is_gguf:
        folder, more = source.path.parent, {"gguf_file": source.path.name}
    try:
        with redirect_stderr(io.StringIO()):  # bars for every tensor; errors come as exceptions
            return transformers.AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=dtype, local_files_only=True, **more
            )
    except ImportError as error:
        raise ModelError(f"transformers needs another package for {source.path}: {error}") from None
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"transformers cannot read {source.path}: {reason}") from None
