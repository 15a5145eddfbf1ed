"""Conversations that sleep and wake: at a word, or after a while without one."""

import asyncio
import secrets
import time
from dataclasses import dataclass

from kvikk.engine.engine import Engine
from kvikk.engine.requests import Output, Usage
from kvikk.engine.sessions import Session
from kvikk.engine.sleeping import SleepResult, put_to_sleep, wake_request
from kvikk.errors import RequestError
from kvikk.server.errors import ApiError
from kvikk.server.service import Service

# A large conversation goes down in pieces, as the tiers' queue has room.
_MOST_PIECES = 200
_PIECE_WAIT_S = 0.05
_MOST_LOOK_WAIT_S = 5.0
_WRITTEN_S = 30.0


@dataclass(frozen=True)
class Woken:
    """What waking brought back, and how long it took."""

    usage: Usage
    seconds: float


def find_session(engine: Engine, name: str, tenant: str) -> Session:
    """A tenant's session. Raises ApiError (404) if it is not known."""
    session = engine.sessions.find(name, tenant)
    if session is None:
        raise ApiError(
            404,
            f"no session {name[:100]!r} is known; its name is the prompt_cache_key of its "
            "requests, or the id of any of them",
            code="session_not_found",
        )
    return session


async def sleep(service: Service, name: str, tenant: str) -> SleepResult:
    """Put a session's blocks away, all that nobody else needs."""
    freed = 0
    for _ in range(_MOST_PIECES):
        piece = await service.call(
            lambda engine: put_to_sleep(engine, find_session(engine, name, tenant))
        )
        freed += piece.freed_blocks
        if piece.complete:
            break
        await asyncio.sleep(_PIECE_WAIT_S)
    tiering = await service.call(lambda engine: engine.tiering)
    assert tiering is not None, "it slept somewhere"
    written = await asyncio.to_thread(tiering.written, _WRITTEN_S)
    return SleepResult(freed, piece.kept_blocks, piece.complete and written)


async def wake(service: Service, name: str, tenant: str) -> Woken:
    """Bring a session's blocks back, from where they sleep or by computing them again."""
    started_s = time.monotonic()
    request = await service.call(
        lambda engine: wake_request(
            engine, find_session(engine, name, tenant), f"wake-{secrets.token_hex(12)}"
        )
    )
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Output] = loop.create_future()

    def finish(output: Output) -> None:
        if not done.done():
            done.set_result(output)

    def listen(output: Output) -> None:
        if output.ends_request:
            loop.call_soon_threadsafe(finish, output)

    service.worker.submit(request, listen)
    try:
        last = await done
    except asyncio.CancelledError:
        service.worker.abort(request.id)
        raise
    if last.error is not None:
        raise ApiError(500, last.error)
    return Woken(last.usage, time.monotonic() - started_s)


async def sleep_when_idle(service: Service, after_s: float) -> None:
    """Put to sleep whoever has said nothing for ``after_s`` seconds; runs until it is cancelled."""
    while True:
        await asyncio.sleep(min(after_s / 4, _MOST_LOOK_WAIT_S))
        try:
            idle = await service.call(lambda engine: _idle(engine, after_s))
            for session in idle:
                await sleep(service, session.name, session.tenant)
        except (ApiError, RequestError):  # the engine has stopped, or a session is gone by now
            continue


def _idle(engine: Engine, after_s: float) -> list[Session]:
    now_s = engine.sessions.clock()
    return [one for one in engine.sessions if not one.asleep and one.idle_s(now_s) >= after_s]
