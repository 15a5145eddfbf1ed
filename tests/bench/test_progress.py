"""A terminal sees a bar move; a log gets a line only for what takes its time."""

import io

from rich.console import Console

from kvikk.bench import progress as progress_module
from kvikk.bench.progress import MeasuringBar


def run(console: Console) -> None:
    with MeasuringBar(console) as bar:
        bar.tell("reading [weights]")
        advance = bar.begin(4)
        advance(0, "kvikk, cached")
        advance(3, "kvikk, cached")


def test_a_terminal_sees_what_is_done_and_the_line_goes_away() -> None:
    screen = io.StringIO()
    run(Console(file=screen, force_terminal=True, width=80))
    text = screen.getvalue()
    assert "75%" in text
    assert "kvikk, cached" in text
    assert text.endswith("\x1b[2K")


def test_a_log_gets_no_bar_and_nothing_for_a_quick_start(monkeypatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(progress_module, "_PATIENCE_S", 1e9)
    run(Console(file=log, width=80))
    assert log.getvalue() == ""
    monkeypatch.setattr(progress_module, "_PATIENCE_S", 0.0)
    run(Console(file=log, width=80))
    assert log.getvalue() == "reading [weights]\n"
