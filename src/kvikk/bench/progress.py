"""How far a measurement is, for whoever waits at a terminal; a log gets nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def progress_bar(
    total: int | None, console: Console | None = None
) -> Iterator[Callable[[str], None]]:
    """A bar on standard error; gives the function that counts one step and says what comes next.

    ``total`` None where nobody knows how many there will be.
    """
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console or Console(stderr=True),
        transient=True,
        # Drawing costs the machine that is being measured.
        refresh_per_second=2,
        disable=not (console or Console(stderr=True)).is_terminal,
    )
    with progress:
        task = progress.add_task("", total=total)

        def advance(description: str) -> None:
            progress.update(task, advance=1, description=description)

        yield advance
