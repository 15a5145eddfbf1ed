"""Run a page's commands again and put what they print in its place.

    python benchmarks/rerun.py docs/measured.md [--only WORDS] [--list]

Between a line ``<!-- run -->`` and the next ``<!-- end -->`` stands an indented block: lines that
begin with ``$`` are commands, all others what they printed, and are replaced. A command that ends
in ``&`` is a server: it is waited for, and runs until another one begins or the page ends. Between
``<!-- machine -->`` and ``<!-- end -->`` comes what this ran on. ``--only`` runs the blocks that
have those words in a command, with the servers that they need.

Commands run in the repository's root by a POSIX shell, with the environment's ``kvikk`` first on
the path. What they write to standard error is for whoever waits, and is not in the page.
"""

import argparse
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from kvikk import __version__
from results import cpu_name

ROOT = Path(__file__).parents[1]
INDENT = "    "
START_S = 180
_BLOCK = re.compile(r"(<!-- run -->\n\n?)(.*?)(\n?<!-- end -->\n)", re.DOTALL)
_MACHINE = re.compile(r"(<!-- machine -->\n).*?(<!-- end -->\n)", re.DOTALL)
_URL = "http://127.0.0.1:{}/health"


class Server:
    """The server that runs now, if any."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, command: str) -> None:
        """Stop the one before, start this, wait until it answers."""
        self.stop()
        self._process = subprocess.Popen(
            ["sh", "-c", f"exec {command}"], cwd=ROOT, env=_environment(), stdout=sys.stderr
        )
        port = re.search(r"--port[ =](\d+)", command)
        url = _URL.format(port[1] if port else 8000)
        deadline = time.monotonic() + START_S
        while True:
            try:
                urllib.request.urlopen(url, timeout=2)
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"{command} does not answer at {url}")
                time.sleep(0.2)
            else:
                return

    def stop(self) -> None:
        """End it, and everything it began."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None


def commands(block: str) -> list[str]:
    """The commands of a block, in their order; a line that ends in a backslash goes on."""
    lines = iter(block.splitlines())
    found = []
    for line in lines:
        if line.startswith(f"{INDENT}$ "):
            parts = [line.removeprefix(f"{INDENT}$ ")]
            while parts[-1].endswith("\\"):
                parts.append(next(lines).removeprefix(INDENT))
            found.append("\n".join(parts))
    return found


def rerun(text: str, only: str | None) -> Iterator[tuple[int, int, str]]:
    """Blocks that were run: where they stand in the text, and what shall stand there."""
    server = Server()
    waiting: str | None = None  # a server that nobody has needed yet
    try:
        for block in _BLOCK.finditer(text):
            wanted = only is None or only in block[2]
            made = []
            for command in commands(block[2]):
                made += [
                    f"{INDENT}{'$ ' if not at else ''}{line}"
                    for at, line in enumerate(command.splitlines())
                ]
                if command.endswith("&"):
                    waiting = command.removesuffix("&").strip()
                elif wanted:
                    if waiting is not None:
                        server.start(waiting)
                        waiting = None
                    made += [f"{INDENT}{line}".rstrip() for line in _output(command).splitlines()]
            if wanted:
                yield block.start(2), block.end(2), "\n".join(made) + "\n"
    finally:
        server.stop()


def _output(command: str) -> str:
    print(f"$ {command}", file=sys.stderr)
    done = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, env=_environment(), stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(f"exit status {done.returncode}: {command}")
    return done.stdout.strip("\n")


def _environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "COLUMNS": "110", "NO_COLOR": "1"}


def main() -> None:
    """Rewrite the page as its blocks are done, so that what broke off keeps what it has."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path)
    parser.add_argument("--only", metavar="WORDS")
    parser.add_argument("--list", action="store_true", help="print the commands and run nothing")
    arguments = parser.parse_args()
    text = arguments.page.read_text()
    if arguments.list:
        print(
            "\n".join(command for block in _BLOCK.finditer(text) for command in commands(block[2]))
        )
        return
    grown = 0
    made = text
    for start, stop, block in rerun(text, arguments.only):
        made = made[: start + grown] + block + made[stop + grown :]
        grown += len(block) - (stop - start)
        arguments.page.write_text(made)
    if arguments.only is None:
        cores = len(os.sched_getaffinity(0))
        told = (
            f"kvikk {__version__} on {cores} cores of {cpu_name()}, {datetime.now(UTC):%Y-%m-%d}.\n"
        )
        arguments.page.write_text(_MACHINE.sub(lambda found: found[1] + told + found[2], made))


if __name__ == "__main__":
    main()
