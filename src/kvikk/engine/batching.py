"""From what a step shall compute to the flat arrays a backend reads, in memory allocated once."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kvikk.backends.base import Batch, Plan
from kvikk.cache.blocks import BlockCopy
from kvikk.cache.manager import CacheManager
from kvikk.engine.sequence import Sequence


class BatchBuilder:
    """Builds one batch at a time; a batch is valid until the next is built.

    Every running sequence owns a row of each group's table and rewrites it only when its blocks
    have changed, once in a block's worth of tokens, so that a decoding sequence costs a step a few
    stores. While the same sequences decode, the batch stays the same one, with other numbers.
    """

    def __init__(self, plan: Plan, cache: CacheManager) -> None:
        width = -(-plan.max_context_tokens // plan.block_size)
        self._cache = cache
        self._block_size = plan.block_size
        self._rows = [np.zeros((plan.max_batch_sequences, width), np.int32) for _ in plan.groups]
        self._tables = [np.zeros(plan.max_batch_sequences * width, np.int32) for _ in plan.groups]
        self._token_ids = np.zeros(plan.max_batch_tokens, np.int32)
        self._positions = np.zeros(plan.max_batch_tokens, np.int32)
        self._sequence_rows = np.zeros(plan.max_batch_tokens, np.int32)
        self._logits_rows = np.zeros(plan.max_batch_sequences, np.int32)
        self._adapters = np.zeros(plan.max_batch_sequences, np.int32)
        # Positions of a sequence and rows of a batch are both cut from it.
        longest = max(plan.max_context_tokens, plan.max_batch_tokens) + 1
        self._counting = np.arange(longest, dtype=np.int32)
        self._batch: Batch | None = None
        # Whose the latest batch is, if each of them decodes one token.
        self.decoding: list[Sequence] = []

    def build(self, chunks: Mapping[Sequence, int], copies: tuple[BlockCopy, ...]) -> Batch:
        """The next ``count`` tokens of each sequence; logits where each wants them."""
        if self._batch is None or copies or not self._goes_on(self._batch, chunks):
            self._batch = self._build(chunks, copies)
        return self._batch

    def _goes_on(self, batch: Batch, chunks: Mapping[Sequence, int]) -> bool:
        """Whether all that is new since ``batch`` is a token more of each; then it is in there."""
        if self.decoding != list(chunks):
            return False
        end = batch.block_tables[0].shape[1] * self._block_size
        for index, (sequence, count) in enumerate(chunks.items()):
            position = sequence.num_computed
            if count != 1 or position != len(sequence.token_ids) - 1 or position >= end:
                return False
            self._token_ids[index] = sequence.token_ids[position]
            self._positions[index] = position
            if sequence.table_changed:
                self._rewrite(sequence)
                for table, gathered in zip(self._rows, batch.block_tables, strict=True):
                    gathered[index] = table[sequence.row, : gathered.shape[1]]
        return True

    def _build(self, chunks: Mapping[Sequence, int], copies: tuple[BlockCopy, ...]) -> Batch:
        stop = 0
        num_logits = 0
        longest = 0
        rows = []
        has_adapters, choices_only = False, True
        hidden_rows: list[int] = []
        decode = not copies
        for index, (sequence, count) in enumerate(chunks.items()):
            start, stop = stop, stop + count
            first = sequence.num_computed
            last = first + count
            if count == 1:
                self._token_ids[start] = sequence.token_ids[first]
                self._positions[start] = first
                self._sequence_rows[start] = index
            else:
                token_ids = sequence.token_ids
                if sequence.draft:
                    self._token_ids[start:stop] = token_ids[first:] + sequence.draft
                else:
                    self._token_ids[start:stop] = token_ids[first:last]
                self._positions[start:stop] = self._counting[first:last]
                self._sequence_rows[start:stop] = index
            wanted = sequence.num_logits(count)
            if wanted:
                self._logits_rows[num_logits : num_logits + wanted] = self._counting[
                    stop - wanted : stop
                ]
                num_logits += wanted
                choices_only = choices_only and sequence.only_chooses
            if sequence.pooled is not None:
                hidden_rows += range(stop - sequence.num_hidden(count), stop)
            longest = max(longest, last)
            decode = decode and count == 1 and sequence.decodes
            if sequence.table_changed:
                self._rewrite(sequence)
            rows.append(sequence.row)
            self._adapters[index] = 0
            if sequence.adapter is not None:
                self._adapters[index] = sequence.adapter.number
                has_adapters = True
        self.decoding = list(chunks) if decode else []
        return Batch(
            token_ids=self._token_ids[:stop],
            positions=self._positions[:stop],
            sequence_rows=self._sequence_rows[:stop],
            block_tables=self._gather(rows, -(-longest // self._block_size)),
            logits_rows=self._logits_rows[:num_logits],
            copies=copies,
            adapters=self._adapters[: len(rows)] if has_adapters else None,
            hidden_rows=np.array(hidden_rows, np.int32) if hidden_rows else None,
            choices_only=choices_only,
        )

    def _rewrite(self, sequence: Sequence) -> None:
        for group, table in enumerate(self._rows):
            blocks = self._cache.block_table(sequence.number, group)
            table[sequence.row, : len(blocks)] = blocks
        sequence.table_changed = False

    def _gather(self, rows: list[int], width: int) -> tuple[NDArray[np.int32], ...]:
        gathered = []
        for table, flat in zip(self._rows, self._tables, strict=True):
            out = flat[: len(rows) * width].reshape(len(rows), width)
            np.take(table[:, :width], rows, axis=0, out=out, mode="clip")
            gathered.append(out)
        return tuple(gathered)
