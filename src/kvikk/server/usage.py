"""What a request used, as its caller is told: the one place where usage for the wire is made."""

from typing import Protocol

from kvikk.engine.requests import Usage as EngineUsage
from kvikk.wire.usage import Usage


class UsageView(Protocol):
    """How one request's counts are told.

    Asked at an answer's beginning and at its end: of the same prompt it says the same both times,
    so that a stream and a whole answer agree.
    """

    def __call__(self, usage: EngineUsage) -> Usage:
        """The engine's counts as they go over the wire."""
        ...


class PhysicalUsage:
    """What really happened: hits were read, and what was computed into full blocks was written.

    The rest of the prompt, less than a block, is neither, and so is all of it in a server that
    shares nothing (``block_size`` None).
    """

    def __init__(self, block_size: int | None) -> None:
        self._block_size = block_size

    def __call__(self, usage: EngineUsage) -> Usage:
        """The counts, with nobody's rules."""
        prompt, cached = usage.prompt_tokens, usage.cached_tokens
        full = 0 if self._block_size is None else prompt // self._block_size * self._block_size
        return Usage(prompt, usage.completion_tokens, cached, max(0, full - cached))
