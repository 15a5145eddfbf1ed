"""From requests to sequences: one for each arrival, and one more for each further answer."""

import time

from kvikk.backends.base import Plan
from kvikk.cache.keys import KeyChain, root_key
from kvikk.engine.adapters import Adapters, LoadedAdapter
from kvikk.engine.answer_text import AnswerText
from kvikk.engine.chance import choice_seed, draw_seed
from kvikk.engine.requests import Request
from kvikk.engine.sequence import Sequence
from kvikk.text.tokenizer import Tokenizer


class Arrivals:
    """Numbers sequences as they come, and says what names their blocks and what ends them.

    ``model_digest`` and ``numerics`` are part of all block names; without ``names_blocks`` there
    are none.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        model_digest: bytes,
        numerics: str,
        tokenizer: Tokenizer | None,
        max_context_tokens: int,
        names_blocks: bool,
        adapters: Adapters,
    ) -> None:
        self._adapters = adapters
        self._plan = plan
        self._model_digest = model_digest
        self._numerics = numerics
        self._tokenizer = tokenizer
        self._max_context_tokens = max_context_tokens
        self._names_blocks = names_blocks
        self._end_token_ids = frozenset() if tokenizer is None else tokenizer.eos_token_ids
        self._num_arrivals = 0

    def first(self, request: Request, arrived_s: float | None) -> Sequence:
        """The first answer to be of a request; ``arrived_s`` None is now.

        Raises RequestError if it names an adapter that is not loaded.
        """
        seed = request.generation.seed
        return self._sequence(
            request,
            choice=0,
            seed=draw_seed() if seed is None else seed,
            arrived_s=time.monotonic() if arrived_s is None else arrived_s,
            adapter=self._adapters.of(request.adapter),
        )

    def another(self, parent: Sequence, choice: int) -> Sequence:
        """One more answer to the prompt of ``parent``, which is counted for that one alone."""
        child = self._sequence(
            parent.request,
            choice=choice,
            seed=choice_seed(parent.seed, choice),
            arrived_s=parent.timings.arrived_s,
            adapter=parent.adapter,
        )
        child.timings = parent.timings
        child.cached_tokens = parent.cached_tokens
        return child

    def _sequence(
        self,
        request: Request,
        *,
        choice: int,
        seed: int,
        arrived_s: float,
        adapter: LoadedAdapter | None,
    ) -> Sequence:
        """One answer to be, as the latest arrival."""
        generation = request.generation
        room = self._max_context_tokens - len(request.prompt_token_ids)
        answer_tokens = room if generation.max_tokens is None else min(generation.max_tokens, room)
        # A grammar says itself when an answer is complete, and has nothing to say after that.
        ignore_eos = generation.ignore_eos and generation.grammar is None
        model_ends = frozenset() if ignore_eos else self._end_token_ids
        sequence = Sequence(
            self._num_arrivals,
            request,
            max_tokens=len(request.prompt_token_ids) + answer_tokens,
            seed=seed,
            end_token_ids=model_ends.union(generation.stop_token_ids),
            keys=self._key_chain(request.salt, adapter),
            text=None if self._tokenizer is None else AnswerText(self._tokenizer, generation),
            arrived_s=arrived_s,
            choice=choice,
            adapter=adapter,
        )
        self._num_arrivals += 1
        return sequence

    def _key_chain(self, salt: bytes, adapter: LoadedAdapter | None) -> KeyChain | None:
        if not self._names_blocks:
            return None
        root = root_key(
            model=self._model_digest,
            block_size=self._plan.block_size,
            kv_dtype=self._plan.kv_dtype,
            numerics=self._numerics,
            adapter=b"" if adapter is None else adapter.content_digest,
            salt=salt,
        )
        return KeyChain(root, self._plan.block_size)
