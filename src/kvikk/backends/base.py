"""The seam between the engine and whatever does the arithmetic.

A backend knows nothing of requests, prompts or hits. It is given a decoder and a plan of its memory
once, and then flat batches: some tokens, where each stands, and through which blocks it may look
back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvikk.cache.blocks import BlockCopy
from kvikk.models.adapter import Adapter
from kvikk.models.decoder import Decoder
from kvikk.shapes.shape import CacheGroup


@dataclass(frozen=True)
class Plan:
    """How much of what a backend shall hold. Fixed when a model is loaded.

    ``num_blocks`` has one entry for each of ``groups``. ``kv_dtype`` is ``f32``, ``bf16``,
    ``int8``, ``fp8`` or ``int4`` (see ``kvikk_dtype``). No batch has more than
    ``max_batch_tokens`` tokens or ``max_batch_sequences`` sequences, and no position reaches
    ``max_context_tokens``.
    """

    groups: tuple[CacheGroup, ...]
    num_blocks: tuple[int, ...]
    block_size: int
    kv_dtype: str
    max_batch_tokens: int
    max_batch_sequences: int
    max_context_tokens: int


@dataclass(frozen=True)
class MemoryUse:
    """Bytes a backend takes under a plan: weights in its own layout, scratch, and KV blocks."""

    weight_bytes: int
    activation_bytes: int
    block_bytes: tuple[int, ...]  # one block of each group


@dataclass(frozen=True)
class Batch:
    """One step's work: T tokens of S sequences, flat.

    A sequence's tokens are adjacent, in order, at consecutive positions; sequences follow each
    other in the order of ``sequence_rows``' values:

        tokens      [ a5 a6 a7 | b40 | c0 c1 ]
        positions   [  5  6  7 |  40 |  0  1 ]
        sequence    [  0  0  0 |   1 |  2  2 ]
        logits_rows [        2,    3          ]    rows of the batch whose logits are wanted

    Keys and values of a token at position p go to slot ``p % block_size`` of the physical block
    ``block_tables[group][sequence, p // block_size]``; the token attends to itself and everything
    before it that its layer's window admits, through the same table. An entry of -1 is a block
    given back because no window reaches it; it is never read or written.

    With ``choices_only`` nobody looks at a row of logits but for where its largest is; the others
    may be rough, as long as they stay below it.
    """

    token_ids: NDArray[np.int32]  # [T]
    positions: NDArray[np.int32]  # [T]
    sequence_rows: NDArray[np.int32]  # [T], 0 … S-1, ascending
    block_tables: tuple[NDArray[np.int32], ...]  # a group: [S, blocks]
    logits_rows: NDArray[np.int32]  # [R], ascending
    copies: tuple[BlockCopy, ...] = ()
    adapters: NDArray[np.int32] | None = None  # [S]
    hidden_rows: NDArray[np.int32] | None = None  # [H], ascending
    choices_only: bool = False


@dataclass(frozen=True)
class SamplingParameters:
    """How to choose a token from logits. ``temperature`` 0 takes the largest, lowest id on a tie.

    ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 leave the distribution whole; ``min_p`` drops tokens
    less likely than that share of the likeliest. The order is temperature, top-k, top-p, min-p.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass(frozen=True)
class LogitsEdit:
    """What is done to a row of logits before a token is chosen from it.

    The logit x of each of the K ``token_ids`` (each named once) becomes, in this order,

        x + bias;   x / divisor where positive, x * divisor else;   x - discount

    and every token that ``allowed`` lacks becomes -inf: token t is bit t % 32 of word t // 32, and
    those beyond its end are lacking. None allows all.
    """

    token_ids: NDArray[np.int64]  # [K]
    biases: NDArray[np.float32]  # [K], -inf forbids
    divisors: NDArray[np.float32]  # [K], positive
    discounts: NDArray[np.float32]  # [K]
    allowed: NDArray[np.uint32] | None = None  # [ceil(vocabulary / 32)]


@dataclass(frozen=True)
class Logprobs:
    """Natural logarithms of probabilities, as the model gives them: no temperature, no edits.

    ``ranks`` count from 1, the likeliest; of equals the lowest id ranks first.
    """

    chosen: NDArray[np.float64]  # [R], of the tokens asked for
    ranks: NDArray[np.int64]  # [R], of the same
    top_ids: NDArray[np.int64]  # [R, k], the likeliest tokens, likeliest first
    top: NDArray[np.float64]  # [R, k], theirs


class Backend(Protocol):
    """Runs a decoder over paged blocks.

    The promise every backend makes: **the same prompt gives the same bits**. A row's logits do not
    depend on what else is in the batch, on how its prompt was cut into batches, on which of its
    blocks were found in the cache, on the block size, or on the number of threads. (The reference
    backend promises it to rounding only.)
    """

    name: str

    @property
    def numerics(self) -> str:
        """Backend, code path and revision: part of every root key, so that bits never mix."""
        ...

    def memory_use(self, decoder: Decoder, plan: Plan) -> MemoryUse:
        """What ``load`` would take; nothing is allocated. ``plan.num_blocks`` is not looked at."""
        ...

    def load(self, decoder: Decoder, plan: Plan) -> None:
        """Lay out the weights and allocate the blocks. Once per backend object."""
        ...

    def load_adapter(self, number: int, adapter: Adapter) -> None:
        """Lay out an adapter that was read for the loaded decoder, as ``number``, 1 or more.

        Takes memory beyond the plan's. Never while ``forward`` runs, and neither is ``unload``.
        Raises ModelError where this backend cannot add to a matrix.
        """
        ...

    def unload_adapter(self, number: int) -> None:
        """Forget an adapter that no sequence of a later batch has."""
        ...

    def forward(self, batch: Batch) -> NDArray[np.float32]:
        """Write the batch's keys and values to their blocks; return logits ``[R, vocabulary]``.

        The result is valid until the next call, and not to be written to. A batch may come again
        with other numbers in its arrays. Releases the interpreter lock while it computes.
        """
        ...

    def hidden_states(self) -> NDArray[np.float32]:
        """What the latest batch's ``hidden_rows`` came to, behind the last norm.

        ``[H, hidden_size]``, valid until the next ``forward``.
        """
        ...

    def sample(
        self,
        logits: NDArray[np.float32],
        parameters: Sequence[SamplingParameters],
        uniforms: NDArray[np.float64],
        edits: Sequence[LogitsEdit | None] | None = None,
    ) -> NDArray[np.int64]:
        """Choose one token a row, ``[R]``; a pure function of its arguments, which it leaves alone.

        ``uniforms`` ``[R]`` in [0, 1) is the only source of chance. A row's choice depends on that
        row alone, and on its edit where ``edits`` has one.
        """
        ...

    def likeliest(self, logits: NDArray[np.float32]) -> list[int] | None:
        """What ``sample`` would choose greedily from what ``forward`` gave, where that is known.

        None where it has yet to be looked for, or cannot be chosen.
        """
        ...

    def logprobs(
        self, logits: NDArray[np.float32], token_ids: NDArray[np.int64], num_top: int
    ) -> Logprobs:
        """How likely each row's token is, and the ``num_top`` likeliest of the row."""
        ...

    def touch(self, group: int, block: int) -> None:
        """Have the system give a block its memory now, where it would wait for the first write.

        Only for a block that nobody uses. What it holds stays.
        """
        ...

    def read(self, group: int, blocks: Sequence[int]) -> bytes:
        """The blocks' bytes one after another, in the layout that ``numerics`` names.

        Safe from another thread for blocks that the running batch does not touch.
        """
        ...

    def write(self, group: int, blocks: Sequence[int], data: bytes) -> None:
        """The inverse of ``read``; same safety. Raises ValueError if the length does not fit."""
        ...
