"""Who waits and who runs, both oldest first, and the rows of a batch that the running ones have."""

from bisect import insort
from operator import attrgetter

from kvikk.engine.sequence import NO_ROW, Sequence

_BY_RANK = attrgetter("rank")


class Queues:
    """A sequence is in one of the two from its arrival to its end. Knows nothing of blocks."""

    def __init__(self, max_running: int) -> None:
        self.max_running = max_running
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._free_rows = list(range(max_running - 1, -1, -1))

    @property
    def num_sequences(self) -> int:
        """Waiting and running."""
        return len(self.waiting) + len(self.running)

    @property
    def has_free_row(self) -> bool:
        """Whether one more may run."""
        return bool(self._free_rows)

    def wait(self, sequence: Sequence) -> None:
        """Queue a sequence, which is in neither, by its priority and age."""
        insort(self.waiting, sequence, key=_BY_RANK)

    def run(self, sequence: Sequence, room: int) -> None:
        """Let a sequence, which is in neither, run in blocks for ``room`` positions."""
        sequence.row = self._free_rows.pop()
        sequence.room = room
        sequence.table_changed = True
        insort(self.running, sequence, key=_BY_RANK)

    def stop(self, sequence: Sequence) -> None:
        """Take a running sequence's row; what it computed is lost."""
        self.running.remove(sequence)
        self._free_rows.append(sequence.row)
        sequence.row = NO_ROW
        sequence.num_computed = sequence.room = 0
        sequence.draft = []

    def find_running(self, number: int) -> Sequence:
        """The running sequence of this number."""
        return next(sequence for sequence in self.running if sequence.number == number)

    def check(self) -> None:
        """AssertionError where a row is lost."""
        assert len(self.running) + len(self._free_rows) == self.max_running
