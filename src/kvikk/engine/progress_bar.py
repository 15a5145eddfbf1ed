"""A progress bar for whoever waits at a terminal; nothing for a log file or a short wait."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# Longer than this and a person wants to see that something moves.
PATIENCE_S = 1.0


class ProgressBar:
    """Counts answers done and tokens generated, on standard error, once ``patience_s`` are over."""

    def __init__(
        self, num_answers: int, console: Console | None = None, patience_s: float = PATIENCE_S
    ) -> None:
        self._console = console or Console(stderr=True)
        self._patience_s = patience_s
        self._num_answers = num_answers
        self._num_done = 0
        self._num_tokens = 0
        self._started_s = time.monotonic()
        self._progress: Progress | None = None

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, num_tokens: int, done: bool) -> None:
        """Tell of new tokens of one answer, and whether it is done."""
        self._num_tokens += num_tokens
        self._num_done += done
        elapsed_s = time.monotonic() - self._started_s
        if self._progress is None:
            if elapsed_s < self._patience_s or not self._console.is_terminal:
                return
            self._progress = Progress(
                TextColumn("generating"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[speed]:.0f} tokens/s"),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._progress.add_task("", total=self._num_answers, speed=0.0)
            self._progress.start()
        self._progress.update(
            self._progress.task_ids[0],
            completed=self._num_done,
            speed=self._num_tokens / elapsed_s,
        )
