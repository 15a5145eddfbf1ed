"""The CPU backend: a decoder on paged blocks, at the speed of memory.

It plans where everything lies, compiles what the decoder needs, and from then on a step is one call
into compiled code that walks all layers with all threads (``step``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from kvikk.backends import sampling
from kvikk.backends.base import Batch, LogitsEdit, Logprobs, MemoryUse, Plan, SamplingParameters
from kvikk.backends.cpu.adapter_tables import AdapterTables
from kvikk.backends.cpu.batch import PROBLEMS, SOUND, prepare
from kvikk.backends.cpu.blocks import BlockStore, block_bytes
from kvikk.backends.cpu.features import process_path
from kvikk.backends.cpu.greedy import UNUSABLE
from kvikk.backends.cpu.jit import SOURCE_DIGEST, available_threads
from kvikk.backends.cpu.kernels import CompileProgress, compile_kernels
from kvikk.backends.cpu.layout import WeightLayout
from kvikk.backends.cpu.rough import FEWEST_ROWS
from kvikk.backends.cpu.step import run_step
from kvikk.backends.cpu.tables import fill_tables
from kvikk.backends.cpu.workspace import Workspace
from kvikk.backends.logprobs import logprobs
from kvikk.models.adapter import Adapter
from kvikk.models.decoder import Decoder

Rows = NDArray[np.int32]
# One step at a time in a process: the threads spin for each other, and numba's own work queue
# cannot be entered twice.
_ONE_STEP = Lock()


class CpuBackend:
    """A ``Backend`` on the CPU's cores.

    ``num_threads`` None takes one thread a core that this process may use.
    """

    name = "cpu"

    def __init__(
        self,
        num_threads: int | None = None,
        compile_progress: CompileProgress = lambda name, done, total: None,
    ) -> None:
        self._path = process_path()
        available = available_threads()
        self._num_threads = max(1, min(num_threads or available, available))
        self._compile_progress = compile_progress

    @property
    def numerics(self) -> str:
        """The code path and a digest of the kernels' source."""
        return f"cpu-{self._path}-{SOURCE_DIGEST}"

    def memory_use(self, decoder: Decoder, plan: Plan) -> MemoryUse:
        """Exactly what ``load`` will take."""
        weights = WeightLayout(decoder)
        workspace = Workspace(decoder, weights, plan, self._num_threads)
        return MemoryUse(
            weight_bytes=weights.region.num_bytes,
            activation_bytes=workspace.region.num_bytes,
            block_bytes=tuple(block_bytes(group, plan) for group in plan.groups),
        )

    def load(self, decoder: Decoder, plan: Plan) -> None:
        """Compile what is not in the cache yet, lay out the weights, allocate the blocks."""
        self._plan, self._vocabulary_size = plan, decoder.vocabulary_size
        weights = WeightLayout(decoder)
        self._workspace = Workspace(decoder, weights, plan, self._num_threads)
        self._blocks = tuple(
            BlockStore(group, num_blocks, plan)
            for group, num_blocks in zip(plan.groups, plan.num_blocks, strict=True)
        )
        kernels = compile_kernels(
            decoder, weights, plan.kv_dtype, self._path, self._compile_progress
        )
        weights.fill()
        self._decoder, self._weights = decoder, weights
        self._workspace.region.allocate()
        self._tables = fill_tables(self._workspace, self._blocks, kernels)
        self._logits, self._choices = self._workspace.logits(), self._workspace.choices()
        self._choices[:] = UNUSABLE
        self._num_heads = 1 if weights.rough_head is None else 2
        self._taken: _TakenBatch | None = None
        self._adapters: AdapterTables | None = None  # from the first one on
        self._hidden_states = np.zeros((0, decoder.hidden_size), np.float32)

    def load_adapter(self, number: int, adapter: Adapter) -> None:
        """Compile what adapters need, if it is the first; lay out its matrices."""
        if self._adapters is None:
            self._adapters = AdapterTables(
                self._decoder,
                self._weights,
                self._plan,
                self._tables,
                self._path,
                self._num_threads,
            )
        self._adapters.load(number, adapter)

    def unload_adapter(self, number: int) -> None:
        """Forget it."""
        assert self._adapters is not None, "none is loaded"
        self._adapters.unload(number)

    def forward(self, batch: Batch) -> NDArray[np.float32]:
        """Run one step. Raises ValueError for a batch that no plan allows, before anything runs.

        A batch that is the one before, with other numbers in its arrays, is looked over by
        compiled code alone.
        """
        tables = self._tables
        with _ONE_STEP:
            taken = self._taken
            if taken is None or taken.batch is not batch:
                taken = self._taken = self._take(batch)
            problem = prepare(
                tables.model,
                tables.groups,
                taken.token_ids,
                taken.positions,
                taken.sequences,
                taken.wanted_rows,
                taken.num_sequences,
                self._plan.block_size,
                self._vocabulary_size,
                self._plan.max_context_tokens,
            )
            if problem != SOUND:
                raise ValueError(PROBLEMS[problem])
            if taken.is_rough:
                tables.model[0]["is_rough"] = 1
            if batch.hidden_rows is not None:
                self._want_hidden(taken.wanted_rows, taken.logits_rows, batch.hidden_rows)
            if batch.adapters is not None:
                if self._adapters is None:
                    raise ValueError("a batch has adapters, and none is loaded")
                self._adapters.begin(batch)
            for copy in batch.copies:
                self._blocks[copy.group].copy(copy.source, copy.target)
            run_step(
                self._num_threads,
                tables.model,
                tables.layers,
                tables.phases,
                tables.jobs,
                tables.groups,
                tables.rotations,
            )
        return taken.logits

    def _take(self, batch: Batch) -> "_TakenBatch":
        """Check what compiled code cannot, and point the tables to a batch's arrays."""
        given = (batch.token_ids, batch.positions, batch.sequence_rows, batch.logits_rows)
        token_ids, positions, sequences, logits_rows = (_int32s(array) for array in given)
        if not 0 < len(positions) <= self._plan.max_batch_tokens or not (
            len(token_ids) == len(positions) == len(sequences)
        ):
            raise ValueError(
                f"a batch of {len(token_ids)} tokens, {len(positions)} positions and "
                f"{len(sequences)} sequence rows; the plan allows 1 to "
                f"{self._plan.max_batch_tokens} of each"
            )
        tables = self._tables
        block_tables = tuple(_int32s(table) for table in batch.block_tables)
        if [table.ndim for table in block_tables] != [2] * len(tables.groups):
            raise ValueError(
                f"block tables must be {len(tables.groups)} arrays [sequences, blocks]"
            )
        for copy in batch.copies:
            if not 0 <= copy.group < len(self._blocks):
                raise ValueError(f"group {copy.group} of a copy is not one of {len(self._blocks)}")
            self._blocks[copy.group].check((copy.source, copy.target))
        wanted_rows = logits_rows
        if batch.hidden_rows is not None:
            wanted_rows = _int32s(np.union1d(logits_rows, batch.hidden_rows))
        for group, table in zip(tables.groups, block_tables, strict=True):
            group["tables"], group["table_columns"] = table.ctypes.data, table.shape[1]
        logits = self._logits
        if len(logits_rows) > len(logits):  # beyond the plan: measurements ask for it
            logits = np.empty((len(logits_rows), logits.shape[1]), np.float32)
        for job in tables.jobs[-self._num_heads :]:
            job["outputs"] = logits.ctypes.data
        taken = (token_ids, positions, sequences, logits_rows, *block_tables)
        are_own = all(map(is_, taken, (*given, *batch.block_tables)))
        return _TakenBatch(
            batch if are_own else None,
            token_ids,
            positions,
            sequences,
            logits_rows,
            wanted_rows,
            block_tables,
            min(len(table) for table in block_tables),
            logits[: len(logits_rows), : self._vocabulary_size],
            self._may_be_rough(batch),
        )

    def _may_be_rough(self, batch: Batch) -> bool:
        """Whether the choices of a batch can be found without all of the head's arithmetic."""
        model = self._tables.model[0]
        is_plain = batch.adapters is None and batch.hidden_rows is None and model["logit_cap"] == 0
        return bool(
            batch.choices_only
            and is_plain
            and model["settle"] != 0
            and FEWEST_ROWS <= len(batch.logits_rows) <= model["max_choices"]
        )

    def hidden_states(self) -> NDArray[np.float32]:
        """The last hidden states that the latest batch wanted, normed."""
        return self._hidden_states[:, : self._decoder.hidden_size]

    def _want_hidden(self, wanted_rows: Rows, logits_rows: Rows, hidden_rows: Rows) -> None:
        """Make room for hidden states; say of each wanted row which of them it is, if any."""
        model = self._tables.model[0]
        self._hidden_states = np.zeros((len(hidden_rows), int(model["hidden_width"])), np.float32)
        model["hidden_states"] = self._hidden_states.ctypes.data
        model["num_logits"] = len(logits_rows)
        places = self._places = np.full((2, len(wanted_rows)), -1, np.int32)
        for place, rows in zip(places, (logits_rows, hidden_rows), strict=True):
            place[np.searchsorted(wanted_rows, rows)] = np.arange(len(rows))
        model["logits_places"], model["hidden_places"] = (place.ctypes.data for place in places)

    def sample(
        self,
        logits: NDArray[np.float32],
        parameters: Sequence[SamplingParameters],
        uniforms: NDArray[np.float64],
        edits: Sequence[LogitsEdit | None] | None = None,
    ) -> NDArray[np.int64]:
        """Choose one token a row."""
        return sampling.sample(logits, parameters, uniforms, edits)

    def likeliest(self, logits: NDArray[np.float32]) -> list[int] | None:
        """What the step's threads found, each in its part of the vocabulary."""
        taken = self._taken
        if taken is None or logits is not taken.logits or len(logits) > len(self._choices):
            return None
        chosen: list[int] = self._choices[: len(logits)].tolist()
        return None if UNUSABLE in chosen else chosen

    def logprobs(
        self, logits: NDArray[np.float32], token_ids: NDArray[np.int64], num_top: int
    ) -> Logprobs:
        """How likely each row's token is, and the likeliest."""
        return logprobs(logits, token_ids, num_top)

    def touch(self, group: int, block: int) -> None:
        """Have the system give a block its memory now."""
        self._blocks[group].touch(block)

    def read(self, group: int, blocks: Sequence[int]) -> bytes:
        """The blocks' bytes one after another, as they lie."""
        return self._blocks[group].read(blocks)

    def write(self, group: int, blocks: Sequence[int], data: bytes) -> None:
        """The inverse of ``read``. Raises ValueError if the length does not fit."""
        self._blocks[group].write(blocks, data)


@dataclass(frozen=True)
class _TakenBatch:
    """The latest batch as compiled code reads it, and a view of where its logits go.

    ``batch`` is None where its arrays had to be copied: such a batch is taken anew.
    """

    batch: Batch | None
    token_ids: Rows
    positions: Rows
    sequences: Rows
    logits_rows: Rows
    wanted_rows: Rows
    block_tables: tuple[Rows, ...]
    num_sequences: int
    logits: NDArray[np.float32]
    is_rough: bool


def _int32s(values: NDArray[np.integer]) -> NDArray[np.int32]:
    """The array that kernels were compiled for: contiguous, and of a type that could be written."""
    array = np.ascontiguousarray(values, np.int32)
    return array if array.flags.writeable else array.copy()
