"""How far a measurement is, for whoever waits at a terminal; a log gets nothing."""

from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


class MeasuringBar:
    """A bar on standard error, once it is told how much there is to do."""

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            # Drawing costs the machine that is being measured.
            refresh_per_second=2,
            disable=not console.is_terminal,
        )

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

    def begin(self, total: int) -> Callable[[int, str], None]:
        """The function to be told how much has been done since, and what comes next."""
        task = self._progress.add_task("", total=total)
        return lambda done, text: self._progress.update(task, advance=done, description=text)
