"""A backend whose answers are right only if every block it reads holds what it should.

It is a decoder reduced to what paging can get wrong. What it keeps for a token is a digest of the
token, its position and *everything it may see*, read back through block tables; the next token's
logits are a digest of that. A wrong table, a stale or shared block, a missed copy, a position
off by one or a window given back too early changes the answer. ``answer`` computes the same with no
blocks at all.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvikk.backends import sampling
from kvikk.backends.base import Batch, LogitsEdit, Logprobs, MemoryUse, Plan, SamplingParameters
from kvikk.backends.logprobs import logprobs
from kvikk.engine.chance import choice_seed, uniform
from kvikk.engine.requests import Generation
from kvikk.models.adapter import Adapter, LowRank
from kvikk.models.decoder import Decoder
from kvikk.shapes.shape import CacheGroup

VOCABULARY_SIZE = 61
_MASK = 2**64 - 1
_UNWRITTEN = 0xDEAD


def _mix(value: int) -> int:
    value = (value * 0x9E3779B97F4A7C15 + 1) & _MASK
    value ^= value >> 29
    value = (value * 0xBF58476D1CE4E5B9) & _MASK
    return value ^ (value >> 32)


def _keep(token_id: int, position: int, seen: int) -> int:
    return _mix(_mix(token_id + 1) ^ _mix(position + 1000) ^ (seen & _MASK))


def _logits(kept: Sequence[int]) -> NDArray[np.float32]:
    state = 0
    for value in kept:
        state = _mix(state ^ value)
    return np.array(
        [(_mix(state + token) >> 40) / 2**22 for token in range(VOCABULARY_SIZE)], np.float32
    )


def hidden(kept: Sequence[int]) -> NDArray[np.float32]:
    """A digest of what a token has seen, as the four numbers of a hidden state."""
    state = 0
    for value in kept:
        state = _mix(state ^ value)
    return np.array([(_mix(state + place) >> 40) / 2**24 for place in range(4)], np.float32)


def an_adapter(name: str) -> Adapter:
    """An adapter that is this name."""
    one = np.ones((1, 1), np.float32)
    return Adapter(name.encode() * 8, {(0, "query"): LowRank(one, one, 1.0)})


def adapter_value(digest: bytes) -> int:
    """What an adapter of this content adds to all that is kept."""
    return int.from_bytes(digest[:6], "little")


def groups(*windows: int | None) -> tuple[CacheGroup, ...]:
    """One group a window; None keeps everything."""
    return tuple(CacheGroup((layer,), 1, 1, window) for layer, window in enumerate(windows))


class ExactBackend:
    """Counts what it was given; can be told to fail, as hardware does."""

    name = "exact"
    numerics = "exact-1"

    def __init__(self) -> None:
        self.computed_tokens = 0
        self.batches: list[int] = []
        self.failure: Exception | None = None  # raised by the next step, once
        self.poison: int | None = None  # a token after which logits are NaN
        self.adapters: dict[int, int] = {}
        self.touched: list[tuple[int, int]] = []  # group and block

    def memory_use(self, decoder: Decoder, plan: Plan) -> MemoryUse:
        return MemoryUse(0, 0, tuple(8 * plan.block_size for _ in plan.groups))

    def load(self, decoder: Decoder | None, plan: Plan) -> None:
        self._plan = plan
        self._blocks = [
            np.full((count, plan.block_size), _UNWRITTEN, np.uint64) for count in plan.num_blocks
        ]

    def load_adapter(self, number: int, adapter: Adapter) -> None:
        assert number > 0
        assert number not in self.adapters
        self.adapters[number] = adapter_value(adapter.content_digest)

    def unload_adapter(self, number: int) -> None:
        del self.adapters[number]

    def hidden_states(self) -> NDArray[np.float32]:
        return self._hidden_states

    def forward(self, batch: Batch) -> NDArray[np.float32]:
        num_tokens, num_sequences = len(batch.token_ids), batch.block_tables[0].shape[0]
        assert 0 < num_tokens <= self._plan.max_batch_tokens
        assert num_sequences <= self._plan.max_batch_sequences
        assert len(batch.logits_rows) <= self._plan.max_batch_sequences
        assert sorted(set(batch.sequence_rows.tolist())) == list(range(num_sequences))
        for copy in batch.copies:
            blocks = self._blocks[copy.group]
            blocks[copy.target] = blocks[copy.source]
        if self.failure is not None:
            failure, self.failure = self.failure, None
            self._write_garbage(batch)
            raise failure
        self.computed_tokens += num_tokens
        self.batches.append(num_tokens)
        kept = [self._token(batch, row) for row in range(num_tokens)]
        if batch.hidden_rows is not None:
            self._hidden_states = np.array([hidden(kept[row]) for row in batch.hidden_rows])
        rows = batch.logits_rows.tolist()
        logits = np.array([_logits(kept[row]) for row in rows], np.float32)
        for index, row in enumerate(rows):
            if batch.token_ids[row] == self.poison:
                logits[index, 7] = np.nan
        return logits.reshape(len(rows), VOCABULARY_SIZE)

    def _token(self, batch: Batch, row: int) -> list[int]:
        token_id, position = int(batch.token_ids[row]), int(batch.positions[row])
        table_row, size = int(batch.sequence_rows[row]), self._plan.block_size
        number = 0 if batch.adapters is None else int(batch.adapters[table_row])
        adapter = self.adapters[number] if number else 0
        kept = []
        for group, blocks, tables in zip(
            self._plan.groups, self._blocks, batch.block_tables, strict=True
        ):
            window = group.window_tokens
            first = 0 if window is None else max(0, position - window + 1)
            visible = np.arange(first, position)
            held = tables[table_row, visible // size]
            assert (held >= 0).all(), "a token looks at a block that was given back"
            seen = int(blocks[held, visible % size].sum(dtype=np.uint64))
            value = _keep(token_id, position, seen + adapter)
            blocks[tables[table_row, position // size], position % size] = value
            kept.append(value)
        return kept

    def _write_garbage(self, batch: Batch) -> None:
        for blocks, tables in zip(self._blocks, batch.block_tables, strict=True):
            for row, position in zip(batch.sequence_rows, batch.positions, strict=True):
                size = self._plan.block_size
                blocks[tables[row, position // size], position % size] = 0xBAD

    def sample(
        self,
        logits: NDArray[np.float32],
        parameters: Sequence[SamplingParameters],
        uniforms: NDArray[np.float64],
        edits: Sequence[LogitsEdit | None] | None = None,
    ) -> NDArray[np.int64]:
        return sampling.sample(logits, parameters, uniforms, edits)

    def likeliest(self, logits: NDArray[np.float32]) -> None:
        """Always to be looked for."""

    def logprobs(
        self, logits: NDArray[np.float32], token_ids: NDArray[np.int64], num_top: int
    ) -> Logprobs:
        return logprobs(logits, token_ids, num_top)

    def touch(self, group: int, block: int) -> None:
        self._blocks[group][block] = _UNWRITTEN  # whoever uses it shall notice
        self.touched.append((group, block))

    def read(self, group: int, blocks: Sequence[int]) -> bytes:
        return self._blocks[group][list(blocks)].tobytes()

    def write(self, group: int, blocks: Sequence[int], data: bytes) -> None:
        shape = (len(blocks), self._plan.block_size)
        self._blocks[group][list(blocks)] = np.frombuffer(data, np.uint64).reshape(shape)


def answer(
    prompt: Sequence[int],
    generation: Generation,
    windows: Sequence[int | None],
    max_context_tokens: int,
    choice: int = 0,
    told: list[NDArray[np.float32]] | None = None,
    adapter: int = 0,
) -> tuple[list[int], str]:
    """The tokens a request must get and why it ends: one sequence, alone, nothing paged.

    ``told`` gets each token's logits, before they are edited; those of the prompt's too.
    """
    tokens = list(prompt)
    kept: list[list[int]] = [[] for _ in windows]
    limit = max_context_tokens
    if generation.max_tokens is not None:
        limit = min(limit, len(prompt) + generation.max_tokens)
    while True:
        for position in range(len(kept[0]), len(tokens)):
            for values, window in zip(kept, windows, strict=True):
                first = 0 if window is None else max(0, position - window + 1)
                values.append(_keep(tokens[position], position, sum(values[first:]) + adapter))
            if told is not None:
                told.append(_logits([values[-1] for values in kept]))
        logits = _logits([values[-1] for values in kept])
        logits = edited(logits, prompt, tokens[len(prompt) :], generation)
        chance = 0.0
        if generation.sampling.temperature > 0:
            assert generation.seed is not None
            chance = uniform(choice_seed(generation.seed, choice), len(tokens) - len(prompt))
        chosen = sampling.sample(logits[None], [generation.sampling], np.array([chance]))
        tokens.append(int(chosen[0]))
        if tokens[-1] in generation.stop_token_ids:
            return tokens[len(prompt) :], "stop"
        if len(tokens) == limit:
            return tokens[len(prompt) :], "length"


def embedding(
    prompt: Sequence[int], pooling: str, windows: Sequence[int | None], adapter: int = 0
) -> NDArray[np.float64]:
    """A prompt as one vector: alone, nothing paged."""
    kept: list[list[int]] = [[] for _ in windows]
    states = []
    for position, token_id in enumerate(prompt):
        for values, window in zip(kept, windows, strict=True):
            first = 0 if window is None else max(0, position - window + 1)
            values.append(_keep(token_id, position, sum(values[first:]) + adapter))
        states.append(hidden([values[-1] for values in kept]).astype(np.float64))
    return states[-1] if pooling == "last" else np.mean(states, axis=0)


def edited(
    logits: NDArray[np.float32],
    prompt: Sequence[int],
    generated: list[int],
    generation: Generation,
) -> NDArray[np.float32]:
    """Logits as bias, penalties and the least number of tokens leave them, a token at a time."""
    changed = logits.copy()
    for token_id, bias in generation.logit_bias:
        changed[token_id] += np.float32(bias)
    if len(generated) < generation.min_tokens:
        changed[list(generation.stop_token_ids)] = -np.inf
    for token_id in {*prompt, *generated}:
        penalty = np.float32(generation.repetition_penalty)
        value = changed[token_id]
        changed[token_id] = value / penalty if value > 0 else value * penalty
    for token_id in set(generated):
        count = generated.count(token_id)
        discount = generation.frequency_penalty * count + generation.presence_penalty
        changed[token_id] -= np.float32(discount)
    return changed
