"""Shares out the time in which the machine computes among the answers that it computes for.

A step's time goes to its answers by the tokens that it computed for each: a prompt of 200 takes two
hundred times what a token of an answer takes in the same step. What was reused took no time. What
is to do behind a step's forward pass is part of the next step's time, so all but the last of it is
shared out; a machine that has nothing to do belongs to nobody.
"""

import time
from collections.abc import Mapping

from kvikk.engine.sequence import Sequence


class MachineTime:
    """A stopwatch for one engine's steps."""

    def __init__(self) -> None:
        self._begun_s = 0.0
        self._left_s = 0.0

    def begin(self) -> None:
        """A step begins that computes something."""
        self._begun_s = time.perf_counter()

    def share(self, chunks: Mapping[Sequence, int]) -> None:
        """So many tokens were computed for each."""
        now_s = time.perf_counter()
        each_s = (now_s - self._begun_s + self._left_s) / sum(chunks.values())
        for sequence, count in chunks.items():
            sequence.machine_s += each_s * count
        self._begun_s, self._left_s = now_s, 0.0

    def end(self) -> None:
        """The step is over."""
        self._left_s = time.perf_counter() - self._begun_s
