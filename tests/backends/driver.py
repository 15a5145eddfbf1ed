"""Drives a backend by hand, without the engine: block tables from a shuffled pile of blocks."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvikk.backends.base import Backend, Batch, Plan
from kvikk.backends.cpu.backend import CpuBackend
from kvikk.models.decoder import Decoder
from kvikk.shapes.shape import cache_groups


class Remembering(CpuBackend):
    """Keeps what ``forward`` gave."""

    def forward(self, batch: Batch) -> NDArray[np.float32]:
        self.latest = super().forward(batch)
        return self.latest


@dataclass
class DrivenSequence:
    """What has been run of one sequence, its block table in each group, and its adapter."""

    tokens: list[int] = field(default_factory=list)
    block_tables: tuple[list[int], ...] = ()
    adapter: int = 0


@dataclass(frozen=True)
class Piece:
    """Tokens to run next on one sequence, and how many of the last want their logits."""

    sequence: DrivenSequence
    tokens: Sequence[int]
    num_logits: int = 1


class Driver:
    """Loads ``decoder`` on ``backend`` with blocks for ``capacity_tokens`` in every group."""

    def __init__(
        self,
        backend: Backend,
        decoder: Decoder,
        capacity_tokens: int,
        block_size: int = 32,
        kv_dtype: str = "f32",
        max_batch_tokens: int = 512,
        seed: int = 0,
    ) -> None:
        self.backend, self.decoder, self.block_size = backend, decoder, block_size
        self.max_batch_tokens = max_batch_tokens
        groups = cache_groups(decoder.shape)
        num_blocks = -(-capacity_tokens // block_size)
        self.plan = Plan(
            groups=groups,
            num_blocks=(num_blocks,) * len(groups),
            block_size=block_size,
            kv_dtype=kv_dtype,
            max_batch_tokens=max_batch_tokens,
            max_batch_sequences=64,
            max_context_tokens=decoder.context_tokens,
        )
        backend.load(decoder, self.plan)
        self.free = [list(range(num_blocks)) for _ in groups]
        for number, blocks in enumerate(self.free):
            random.Random(seed + number).shuffle(blocks)

    def new_sequence(self, adapter: int = 0) -> DrivenSequence:
        return DrivenSequence(block_tables=tuple([] for _ in self.plan.groups), adapter=adapter)

    def run(self, pieces: Sequence[Piece], choices_only: bool = False) -> list[NDArray[np.float32]]:
        """One forward pass. Returns each piece's logits, copied, ``[num_logits, vocabulary]``."""
        token_ids: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        logits_rows: list[int] = []
        for row, piece in enumerate(pieces):
            first = len(piece.sequence.tokens)
            positions += range(first, first + len(piece.tokens))
            token_ids += piece.tokens
            rows += [row] * len(piece.tokens)
            logits_rows += range(len(token_ids) - piece.num_logits, len(token_ids))
            piece.sequence.tokens += piece.tokens
            self._allocate(piece.sequence)
        adapters = np.array([piece.sequence.adapter for piece in pieces], np.int32)
        logits = self.backend.forward(
            Batch(
                token_ids=np.array(token_ids, np.int32),
                positions=np.array(positions, np.int32),
                sequence_rows=np.array(rows, np.int32),
                block_tables=self._block_tables([piece.sequence for piece in pieces]),
                logits_rows=np.array(logits_rows, np.int32),
                adapters=adapters if adapters.any() else None,
                choices_only=choices_only,
            )
        )
        stops = np.cumsum([piece.num_logits for piece in pieces])
        return [part.copy() for part in np.split(logits, stops[:-1])]

    def prefill(
        self, sequence: DrivenSequence, tokens: Sequence[int], chunk_tokens: int | None = None
    ) -> NDArray[np.float32]:
        """Run ``tokens`` in chunks; return the last one's logits ``[vocabulary]``."""
        step = chunk_tokens or self.max_batch_tokens
        for start in range(0, len(tokens), step):
            chunk = tokens[start : start + step]
            (logits,) = self.run([Piece(sequence, chunk, num_logits=1)])
            self.give_back(sequence)
        return logits[-1]

    def prefill_together(
        self, sequences: Sequence[DrivenSequence], prompts: Sequence[Sequence[int]]
    ) -> NDArray[np.float32]:
        """Run all prompts, as many tokens at once as fit; return the last logits of each."""
        logits = np.empty((len(prompts), self.decoder.vocabulary_size), np.float32)
        waiting = [(index, list(prompt)) for index, prompt in enumerate(prompts)]
        while waiting:
            pieces, ended, room = [], [], self.max_batch_tokens
            while waiting and room:
                index, rest = waiting[0]
                chunk, rest = rest[:room], rest[room:]
                room -= len(chunk)
                pieces.append(Piece(sequences[index], chunk, num_logits=not rest))
                if rest:
                    waiting[0] = (index, rest)
                else:
                    ended.append(waiting.pop(0)[0])
            parts = self.run(pieces)
            logits[ended] = np.concatenate(parts)
            for piece in pieces:
                self.give_back(piece.sequence)
        return logits

    def all_logits(
        self, tokens: Sequence[int], chunk_tokens: int | None = None
    ) -> NDArray[np.float32]:
        """Run ``tokens`` as a new sequence; return all logits, ``[len(tokens), vocabulary]``."""
        sequence = self.new_sequence()
        step = chunk_tokens or self.max_batch_tokens
        parts = []
        for start in range(0, len(tokens), step):
            chunk = tokens[start : start + step]
            parts += self.run([Piece(sequence, chunk, num_logits=len(chunk))])
            self.give_back(sequence)
        self.release(sequence)
        return np.concatenate(parts)

    def greedy(
        self, prompts: Sequence[Sequence[int]], num_tokens: int, adapters: Sequence[int] = ()
    ) -> tuple[list[list[int]], NDArray[np.float32]]:
        """Continue all prompts together, always with the likeliest token, whatever it is.

        ``adapters`` are the prompts' own; none has one where it is empty. Returns the new tokens of
        each and the logits they were chosen from, ``[prompts, num_tokens, vocabulary]``.
        """
        sequences = [self.new_sequence(number) for number in adapters or [0] * len(prompts)]
        logits = np.empty((len(prompts), num_tokens, self.decoder.vocabulary_size), np.float32)
        logits[:, 0] = self.prefill_together(sequences, prompts)
        for step in range(1, num_tokens):
            chosen = logits[:, step - 1].argmax(axis=-1)
            pieces = [Piece(s, [int(token)]) for s, token in zip(sequences, chosen, strict=True)]
            logits[:, step] = np.concatenate(self.run(pieces))
            for sequence in sequences:
                self.give_back(sequence)
        for sequence in sequences:
            self.release(sequence)
        return logits.argmax(axis=-1).tolist(), logits

    def give_back(self, sequence: DrivenSequence) -> None:
        """Free the blocks that no window of a later token reaches: their entries become -1."""
        next_position = len(sequence.tokens)
        for group, table, free in zip(
            self.plan.groups, sequence.block_tables, self.free, strict=True
        ):
            if group.window_tokens is None:
                continue
            first_visible = max(0, next_position - group.window_tokens + 1)
            for block in range(first_visible // self.block_size):
                if table[block] >= 0:
                    free.append(table[block])
                    table[block] = -1

    def release(self, sequence: DrivenSequence) -> None:
        """Free all blocks of a sequence that has ended."""
        for table, free in zip(sequence.block_tables, self.free, strict=True):
            free.extend(block for block in table if block >= 0)
            table.clear()

    def _allocate(self, sequence: DrivenSequence) -> None:
        needed = -(-len(sequence.tokens) // self.block_size)
        for table, free in zip(sequence.block_tables, self.free, strict=True):
            while len(table) < needed:
                table.append(free.pop())

    def _block_tables(self, sequences: Sequence[DrivenSequence]) -> tuple[NDArray[np.int32], ...]:
        longest = max(-(-len(sequence.tokens) // self.block_size) for sequence in sequences)
        tables = tuple(np.full((len(sequences), longest), -1, np.int32) for _ in self.plan.groups)
        for row, sequence in enumerate(sequences):
            for table, blocks in zip(tables, sequence.block_tables, strict=True):
                table[row, : len(blocks)] = blocks
        return tables
