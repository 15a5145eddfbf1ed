"""Putting a conversation's blocks away and bringing them back; pinning a prefix.

What sleeps lies in a tier and nowhere else. Nothing about its answers changes: the next request
finds its blocks in the tier, or computes what it does not find.
"""

from dataclasses import dataclass

from kvikk.cache.keeping import Pin
from kvikk.engine.engine import Engine
from kvikk.engine.requests import Generation, Origin, Request
from kvikk.engine.sessions import WAKE_ROUTE, Session
from kvikk.errors import BusyError, RequestError


@dataclass(frozen=True)
class SleepResult:
    """``freed_blocks`` were handed to the tiers and are empty now.

    ``kept_blocks`` stay: running requests, pins or other conversations need them too. ``complete``
    is false where the tiers' queue was full: ask again.
    """

    freed_blocks: int
    kept_blocks: int
    complete: bool


def put_to_sleep(engine: Engine, session: Session) -> SleepResult:
    """Hand a session's blocks down and empty them. RequestError for an engine without tiers."""
    tiering = engine.tiering
    if tiering is None:
        raise RequestError(
            "there is nowhere to sleep: choose --host-tier, --disk-tier or --redis-tier"
        )
    held = sum(len(held) for held in engine.cache.held(session.keys))
    idle = engine.cache.idle(session.keys)
    accepted = tiering.hand_down(idle)
    engine.cache.let_go(idle[:accepted])
    session.asleep = accepted == len(idle)
    return SleepResult(accepted, held - len(idle), accepted == len(idle))


def wake_request(engine: Engine, session: Session, request_id: str) -> Request:
    """A request that brings a session's blocks back; its one token is for nobody."""
    tokens = session.tokens[: engine.max_context_tokens - 1]
    return Request(
        request_id,
        tokens.tolist(),
        Generation(max_tokens=1, ignore_eos=True),
        session.salt,
        Origin(session.tenant, route=WAKE_ROUTE),
        session=session.name,
        adapter=session.adapter,
    )


def pin(engine: Engine, session: Session, num_tokens: int | None) -> Pin:
    """Pin the first ``num_tokens`` (None: all) of a session's latest prompt.

    Raises RequestError if pins would take too much, BusyError if it is not in the cache any more.
    """
    size = engine.cache.block_size
    most = session.num_prompt_tokens if num_tokens is None else num_tokens
    try:
        pin = engine.cache.pin(session.keys[: min(most, session.num_prompt_tokens) // size])
    except ValueError as error:
        raise RequestError(str(error), "tokens") from None
    if pin is None:
        raise BusyError("nothing of that prompt is in the cache now; send it once more, then pin")
    return pin
