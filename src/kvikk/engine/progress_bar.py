"""What those who wait are shown: while a model is loaded, and while a long batch is answered."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# Longer than this and a person wants to see that something moves.
PATIENCE_S = 1.0


@contextmanager
def loading_line(
    model: str, console: Console | None = None, patience_s: float = PATIENCE_S
) -> Iterator[Callable[[str], None]]:
    """Say what goes on while ``model`` is loaded; gives the function to tell it, on standard error.

    A terminal has one line that changes. A log has a line for whatever is begun ``patience_s``
    after the last one or later, and so none at all for a quick start.
    """
    console = console or Console(stderr=True, highlight=False)
    if console.is_terminal:
        with console.status(f"{model}: starting") as status:
            yield lambda line: status.update(escape(f"{model}: {line}"))
        return
    told_s = time.monotonic()

    def tell(line: str) -> None:
        nonlocal told_s
        if time.monotonic() - told_s >= patience_s:
            told_s = time.monotonic()
            console.print(escape(f"{model}: {line}"), soft_wrap=True)

    yield tell


class ProgressBar:
    """Counts answers done and tokens generated for whoever waits at a terminal.

    On standard error, once ``patience_s`` are over; a log gets nothing.
    """

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
