"""A script that prints one JSON line of speeds: ``yardstick_peer.py MODEL.gguf THREADS SCRIPT``.

It measures everything in one go and cannot be asked for one thing, so it runs once a round, when
the round's first measure is asked for, and its answers to the rest of the round are from that run.
"""

import json
import subprocess
import sys
from typing import Any

from protocol import Amount, serve


class Yardstick:
    """Speeds of the last run, each given out once."""

    def __init__(self, model: str, threads: str, script: str) -> None:
        self._command = [sys.executable, script, model]
        self._speeds: dict[str, float] = {}

    def describe(self) -> dict[str, Any]:
        """It has no versions."""
        return {"version": ""}

    def close(self) -> None:
        """Nothing outlives a run."""

    def prefill(self, tokens: int) -> Amount:
        """A prompt."""
        return self._amount(f"prefill_{tokens}_tokens_per_s", tokens)

    def decode(self, context: int, tokens: int) -> Amount:
        """One stream."""
        return self._amount(f"decode_at_{context}_tokens_per_s", tokens)

    def batch(self, streams: int, prompt: int, output: int) -> Amount:
        """Many streams."""
        name = f"batch_{streams}_{prompt}in_{output}out_tokens_per_s"
        return self._amount(name, streams * output)

    def _amount(self, name: str, tokens: int) -> Amount:
        if name not in self._speeds:
            done = subprocess.run(self._command, capture_output=True, text=True, check=True)
            self._speeds = json.loads(done.stdout.splitlines()[-1])
        return tokens, tokens / self._speeds.pop(name)


if __name__ == "__main__":
    serve(Yardstick)
