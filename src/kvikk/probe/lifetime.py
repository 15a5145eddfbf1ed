"""How long an entry lives that nobody reads: written once, read once, after each of some waits.

All entries are written at the beginning, each with a nonce of its own since a read would refresh
it, and read when their time has come; the whole takes as long as the longest wait. A server's
clock file makes that no wait at all.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvikk.errors import RequestError
from kvikk.probe.api import Prompt
from kvikk.probe.money import Estimate, estimate
from kvikk.probe.run import NOT_TOLD, Run, contamination
from kvikk.text.words import text_of

WORDS = 2_400


@dataclass(frozen=True)
class Life:
    """Each wait, and whether the entry was still there.

    ``survived_s`` is the longest wait that an entry outlived, ``gone_s`` the shortest after which
    one was gone; None where there is none.
    """

    waits: tuple[tuple[float, bool], ...]
    contaminated: tuple[str, ...]

    @property
    def survived_s(self) -> float | None:
        """Longest wait survived."""
        return max((wait_s for wait_s, is_there in self.waits if is_there), default=None)

    @property
    def gone_s(self) -> float | None:
        """Shortest wait not survived."""
        return min((wait_s for wait_s, is_there in self.waits if not is_there), default=None)

    def to_json(self) -> dict[str, Any]:
        """The bounds, and what they rest on."""
        return {
            "survived_s": self.survived_s,
            "gone_s": self.gone_s,
            "contaminated": bool(self.contaminated),
            "waits": [{"wait_s": wait_s, "hit": is_there} for wait_s, is_there in self.waits],
        }


class Clock:
    """Real time, or a server's: a file with the seconds that are added to its clock."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._started_s = time.monotonic()
        self._passed_s = 0.0

    def wait_until(self, moment_s: float) -> None:
        """Until so many seconds after the beginning. Raises RequestError if the file fails."""
        if self._file is not None:
            self._add(moment_s)
            return
        while (left_s := moment_s - (time.monotonic() - self._started_s)) > 0:
            time.sleep(left_s)

    def _add(self, moment_s: float) -> None:
        assert self._file is not None
        try:
            text = self._file.read_text() if self._file.exists() else ""
            ahead_s = float(text or 0) + max(0.0, moment_s - self._passed_s)
            self._file.write_text(f"{ahead_s}\n")
        except (OSError, ValueError) as error:
            raise RequestError(
                f"--clock {self._file}: {error}; expected a file with a number of seconds"
            ) from None
        self._passed_s = max(self._passed_s, moment_s)


def lifetime(
    run: Run, waits_s: Sequence[float], clock: Clock, fields: dict[str, Any], words: int = WORDS
) -> Life:
    """Write an entry for each wait, and read each when it is over."""
    if not waits_s or min(waits_s) < 0:
        raise RequestError("--waits: expected times of 0 s or more, such as 0,5m,1h")
    shared_tokens = run.shared_tokens()
    order = sorted(set(waits_s))
    entries = [(wait_s, run.nonce()) for wait_s in order]

    def prompt(nonce: str) -> Prompt:
        fixed = f"{nonce} {text_of(words, 'lifetime')}"
        return Prompt(system=(fixed,), user=("Yes?",), fields=fields)

    written = [
        run.one("written", prompt(nonce), f"to be read after {wait_s:g} s")
        for wait_s, nonce in entries
    ]
    found: list[tuple[float, bool]] = []
    for wait_s, nonce in entries:
        clock.wait_until(wait_s)
        found.append((wait_s, run.one("read", prompt(nonce), f"after {wait_s:g} s").is_hit))
        if not run.tells_reads:  # nor will it of what is read later
            raise RequestError(NOT_TOLD)
    suspects = (contamination([one], shared_tokens) for one in written)
    return Life(tuple(found), tuple(line for line in suspects if line is not None))


def planned(waits_s: Sequence[float], words: int = WORDS) -> Estimate:
    """What a run sends."""
    return estimate([text_of(words, "lifetime")] * (2 * len(set(waits_s))))
