from io import StringIO

from rich.console import Console

from kvikk.engine.progress_bar import ProgressBar, loading_line


def shown(*, terminal: bool, patience_s: float) -> str:
    screen = StringIO()
    console = Console(file=screen, force_terminal=terminal, width=100)
    with ProgressBar(3, console, patience_s) as bar:
        for done in (False, True, True):
            bar.update(5, done)
    return screen.getvalue()


def test_a_terminal_sees_how_many_answers_are_done() -> None:
    assert "2/3" in shown(terminal=True, patience_s=0)


def test_a_log_file_sees_nothing() -> None:
    assert shown(terminal=False, patience_s=0) == ""


def test_a_short_wait_shows_nothing() -> None:
    assert shown(terminal=True, patience_s=1e9) == ""


def loading(patience_s: float) -> str:
    screen = StringIO()
    with loading_line("a-model", Console(file=screen), patience_s) as tell:
        tell("reading [the] weights")
        tell("compiling")
    return screen.getvalue()


def test_a_log_is_told_of_a_slow_start_and_not_of_a_quick_one() -> None:
    assert loading(0) == "a-model: reading [the] weights\na-model: compiling\n"
    assert loading(1e9) == ""
