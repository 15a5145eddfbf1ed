"""What whoever measures and a peer say to each other: JSON lines over the peer's pipes.

    peer      {"version": "0.3.36", …}                                  once it is ready
    measurer  {"measure": "prefill", "tokens": 512}
    peer      {"amount": 512, "seconds": 0.26}                          or {"error": "…"}

A peer runs in an interpreter of its own, so this file needs nothing but Python. Amounts are tokens,
of ``bandwidth`` bytes.
"""

import json
import os
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

Amount = tuple[int, float]  # what was done, and in how many seconds


class Peer(Protocol):
    """One engine with one model: greedy, the end token ignored, no prompt seen before.

    Peers also have what they can do of these:

    * ``prefill(tokens)``: a prompt, up to its first token.
    * ``decode(context, tokens)``: so many tokens behind a prompt of ``context``, the first aside.
    * ``batch(streams, prompt, output)``: so many prompts at once, from nothing to the last token;
      the amount is what came out.
    * ``bandwidth()``: reading memory with all threads.
    """

    def describe(self) -> dict[str, Any]:
        """``version``, and what else belongs beside the figures."""

    def close(self) -> None:
        """End what the peer has started."""


class TokenByToken(ABC):
    """Prefill and decoding of an engine that can say when each token was there."""

    @abstractmethod
    def token_times(self, context: int, tokens: int) -> list[float]:
        """Seconds: when a fresh prompt was handed in, then when each of ``tokens`` was there."""

    def prefill(self, tokens: int) -> Amount:
        """Up to the first token."""
        started_s, first_s = self.token_times(tokens, 1)
        return tokens, first_s - started_s

    def decode(self, context: int, tokens: int) -> Amount:
        """From the first token to the last."""
        times_s = self.token_times(context, tokens + 1)
        return tokens, times_s[-1] - times_s[1]


def prompt(seed: int, num_tokens: int) -> list[int]:
    """Random token ids, within every vocabulary here and clear of the special ones."""
    return random.Random(seed).choices(range(1_000, 40_000), k=num_tokens)


def serve(make: Callable[..., Peer]) -> None:
    """Make the peer from the command line's words and answer until the pipe is closed."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what an engine prints shall not end up among the answers
    peer = make(*sys.argv[1:])
    try:
        print(json.dumps(peer.describe()), file=answers)
        for line in sys.stdin:
            request = json.loads(line)
            try:
                amount, seconds = getattr(peer, request.pop("measure"))(**request)
                answer: dict[str, Any] = {"amount": amount, "seconds": seconds}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers)
    finally:
        peer.close()
