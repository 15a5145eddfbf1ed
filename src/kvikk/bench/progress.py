"""How far a measurement is, for whoever waits: a bar at a terminal, a few lines in a log."""

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

# A log gets a line for what is begun so long after the last one, and none for a quick start.
_PATIENCE_S = 1.0


class MeasuringBar:
    """One bar on standard error; it shows what is being prepared until there is something to count.

    A log is only told of the preparations, since drawing costs the machine that is being measured.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            refresh_per_second=2,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task("preparing", total=None)
        self._told_s = time.monotonic()

    def __enter__(self) -> "MeasuringBar":
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def tell(self, line: str) -> None:
        """What is being prepared."""
        self._progress.update(self._task, description=escape(line))
        if self._progress.disable and time.monotonic() - self._told_s >= _PATIENCE_S:
            self._told_s = time.monotonic()
            self._console.print(escape(line), soft_wrap=True)

    def begin(self, total: int) -> Callable[[int, str], None]:
        """The function to be told how much has been done since, and what comes next."""
        self._progress.update(self._task, total=total, completed=0)
        return lambda done, text: self._progress.update(
            self._task, advance=done, description=escape(text)
        )
