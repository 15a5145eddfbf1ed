"""A conversation in the terminal, with a model of our own."""

import re
import subprocess
import sys

SCRIPT = "What is the capital of France?\nAnd of Norway?\n/reset\nHello!\n/quit\n"


def reused(stderr: str) -> list[tuple[int, int]]:
    pattern = r"reused ([\d,]+) of ([\d,]+) prompt tokens"
    return [
        (int(cached.replace(",", "")), int(total.replace(",", "")))
        for cached, total in re.findall(pattern, stderr)
    ]


def test_each_turn_says_what_it_reused() -> None:
    command = [sys.executable, "-m", "kvikk", "chat", "--max-tokens", "24", "--kv-memory", "64MiB"]
    done = subprocess.run(command, capture_output=True, text=True, input=SCRIPT, check=True)
    assert len(done.stdout) > 50
    first, second, anew = reused(done.stderr)
    assert first[0] == 0
    # The second prompt continues the first one and its answer: all but the last blocks are there.
    assert second[0] >= first[1] // 32 * 32 > 0
    # After /reset the system message alone is left in common, less than a block of 32.
    assert anew[0] == 0
