"""A trace as replay takes it: when a request came, how long it was, and which blocks it had."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request. ``blocks`` are names of its prompt's blocks, each standing for all before it.

    The last one may be only partly full. ``session`` is whatever the trace says belongs together,
    None where it says nothing; ``key`` a digest of what a caller named to keep requests together.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[Hashable, ...]
    session: Hashable | None = None
    key: bytes = b""


@dataclass(frozen=True)
class Trace:
    """Requests by arrival, all in blocks of ``block_tokens``."""

    requests: tuple[TracedRequest, ...] = field(repr=False)
    block_tokens: int

    @cached_property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(request.prompt_tokens for request in self.requests)

    @cached_property
    def distinct_blocks(self) -> int:
        """Blocks that differ: what a cache that holds everything would hold."""
        return len({block for request in self.requests for block in request.blocks})

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last."""
        return self.requests[-1].arrival_s - self.requests[0].arrival_s

    def hit_tokens(self, request: TracedRequest, blocks: int) -> int:
        """Tokens reused where ``blocks`` leading blocks are there."""
        return min(blocks * self.block_tokens, request.prompt_tokens)
