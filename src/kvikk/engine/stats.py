"""What an engine says about itself: a snapshot between two steps."""

from dataclasses import dataclass, field

from kvikk.engine.tiering import NO_TIERS, TieringStats


@dataclass(frozen=True)
class GroupStats:
    """Blocks of one group by state: ``live + cached + empty = total``."""

    window_tokens: int | None
    total_blocks: int
    live_blocks: int
    cached_blocks: int
    empty_blocks: int


@dataclass(frozen=True)
class Stats:
    """State now, and totals since the start, which only grow.

    ``waiting_tokens`` are tokens of prompts, of requests that wait or run, that are not computed.
    ``prefix_query_tokens`` are prompt tokens looked up in the cache and ``prefix_hit_tokens`` those
    found, each request counted once, at its first admission. ``computed_tokens`` are those given to
    the backend, recomputation after a preemption and guesses included. ``drafts`` are the guesses
    that were computed, ``drafted_tokens`` their tokens, ``accepted_tokens`` those that were right.
    ``forks`` are answers that began on the blocks of another to the same prompt, ``copied_blocks``
    the blocks that were copied before a write because others use them too.
    """

    running_requests: int = 0
    waiting_requests: int = 0
    waiting_tokens: int = 0
    block_size: int = 0
    groups: tuple[GroupStats, ...] = ()
    steps: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    computed_tokens: int = 0
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    forks: int = 0
    copied_blocks: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    finished_requests: dict[str, int] = field(default_factory=dict)  # by finish reason
    tiering: TieringStats = NO_TIERS
