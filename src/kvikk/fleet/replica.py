"""One engine as a deployment of Ray Serve: the server's own application, called without a socket.

The routes, keys and formats are those of ``kvikk serve``: a request comes as its bytes, the answer
goes back in the bytes that the server would have sent. Beside it the replica says who it is, how
many prompt tokens wait, and what became of each attempt.
"""

import asyncio
import logging
import os
import secrets
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from starlette.types import Message

from kvikk.engine.books import Books
from kvikk.engine.engine import Engine
from kvikk.engine.loading import load_engine
from kvikk.fleet.attempts import BUSY, Frame, Head, HttpRequest, Tail
from kvikk.fleet.ledger.outbox import Outbox
from kvikk.fleet.ledger.records import LEFT, REFUSED, Ask, Batch, Settled
from kvikk.fleet.members import Member
from kvikk.fleet.options import FleetOptions
from kvikk.router.proxy.placement import Reported
from kvikk.server.app import create_app
from kvikk.server.kv_events import KvEventPublisher
from kvikk.server.ledgers import request_ledger
from kvikk.server.service import Service

logger = logging.getLogger(__name__)


class Replica:
    """An engine and the server around it."""

    def __init__(
        self,
        options: FleetOptions,
        replica_id: str,
        node_ip: str,
        node: str,
    ) -> None:
        # Everybody who may connect hears the prompts: only where the fleet's own machines are.
        self._publisher = KvEventPublisher(f"tcp://{node_ip}:*", f"tcp://{node_ip}:*")
        loaded = load_engine(options.server.engine)
        assert loaded.engine.books is not None
        self._publisher.follow(loaded.engine.books)
        self._app: FastAPI = create_app(loaded, options.server)
        self._service: Service = self._app.state.service
        self._lifespan = self._app.router.lifespan_context(self._app)
        self._outbox = Outbox(replica_id)
        self._attempts: dict[str, _Attempt] = {}
        self.member = Member(
            replica_id,
            node,
            secrets.token_hex(8),
            os.getpid(),
            _capacity_tokens(loaded.engine),
            self._publisher.endpoint,
            self._publisher.replay_endpoint,
        )

    async def start(self) -> None:
        """Begin what goes on beside requests."""
        await self._lifespan.__aenter__()

    async def close(self) -> None:
        """End the engine and what belongs to it."""
        await self._lifespan.__aexit__(None, None, None)
        await asyncio.to_thread(self._publisher.close)

    async def answer(
        self, attempt: str, request: HttpRequest, prompt_tokens: int
    ) -> AsyncIterator[Frame]:
        """The answer as it is made; leaving early stops the work.

        ``prompt_tokens`` is what the ingress takes the prompt for, 0 for a request without one;
        an attempt with a prompt has a record in the fleet's ledger.
        """
        running = self._attempts[attempt] = _Attempt(self._app, request)
        if prompt_tokens:
            self._outbox.began(attempt)
        # Its own, so that it comes to its end whatever happens to the call that asked for it.
        running.task = asyncio.create_task(self._run(attempt, running, prompt_tokens))
        try:
            ended = False
            while not ended:
                for frame in await running.take():
                    ended = isinstance(frame, Tail)
                    yield frame
        finally:
            running.leave()

    async def stop(self, attempt: str) -> None:
        """Nobody waits for this attempt: a cancellation that was lost on its way comes so too."""
        running = self._attempts.get(attempt)
        if running is not None:
            running.leave()

    async def collect(self, ask: Ask) -> Batch:
        """Records that an ingress lacks."""
        return self._outbox.collect(ask)

    def figures(self) -> dict[str, Any]:
        """The engine as it is now; of its blocks, sums over groups."""
        stats = self._service.worker.stats()
        blocks = {
            name: sum(getattr(group, name) for group in stats.groups)
            for name in ("total_blocks", "live_blocks", "cached_blocks")
        }
        return {
            "id": self.member.id,
            "running_requests": stats.running_requests,
            "waiting_requests": stats.waiting_requests,
            "waiting_tokens": stats.waiting_tokens,
            "block_size": stats.block_size,
            **blocks,
            "prompt_tokens": stats.prefix_query_tokens,
            "hit_tokens": stats.prefix_hit_tokens,
            "generated_tokens": stats.generated_tokens,
        }

    def waiting_tokens(self) -> int:
        """Prompt tokens that were accepted and are not computed."""
        return self._service.worker.stats().waiting_tokens

    def check(self) -> None:
        """RuntimeError if the engine has stopped: Serve then starts another in its place."""
        failure = self._service.worker.failure
        if failure is not None:
            raise RuntimeError(f"the engine has stopped: {failure}")

    async def _run(self, attempt: str, running: "_Attempt", prompt_tokens: int) -> None:
        record = None
        try:
            await running.run()
            record = await self._account(attempt, running)
        except Exception:
            logger.exception("attempt %s failed", attempt)
        del self._attempts[attempt]
        if record is None and prompt_tokens:
            record = running.turned_away(attempt, prompt_tokens)
        batch = None if record is None else self._outbox.settled(record)
        running.put(Tail(batch, running.usage))

    async def _account(self, attempt: str, running: "_Attempt") -> Settled | None:
        """What the engine's books say; None where it never admitted the request."""
        state = running.scope["state"]
        request_ids: list[str] = state.get("request_ids") or [state.get("request_id", "")]

        def read(books: Books) -> Settled | None:
            accounts = [books.accounts.find(request_id) for request_id in request_ids]
            ledgers = [request_ledger(books, one, None) for one in accounts if one is not None]
            return Settled.of(attempt, *ledgers) if ledgers else None

        # The engine takes jobs in their order: this one comes after an abort.
        return await self._service.read_books(read) if any(request_ids) else None


class _Attempt:
    """One call of the application: what it sends waits here to be taken, all that is there at once.

    Belongs to the event loop.
    """

    def __init__(self, app: FastAPI, request: HttpRequest) -> None:
        self.scope = request.scope()
        self.status = 0
        self.task: asyncio.Task[None] | None = None
        self._app = app
        self._body: bytes | None = request.body
        self._left = asyncio.Event()
        self._frames: list[Frame] = []
        self._arrived = asyncio.Event()

    async def run(self) -> None:
        """Call the application; returns when it has nothing more to do."""
        await self._app(self.scope, self._receive, self._send)

    @property
    def usage(self) -> Reported | None:
        """What it used, where the engine got it."""
        counts: dict[str, int] = self.scope["state"].get("counts", {})
        if not counts:
            return None
        return Reported(
            counts["prompt_tokens"],
            counts["cached_tokens"],
            counts.get("completion_tokens", 0),  # vectors are made of none
        )

    def turned_away(self, attempt: str, prompt_tokens: int) -> Settled:
        """The account of one that the engine never admitted; what makes no sense is no prompt."""
        if 400 <= self.status < 500 and self.status not in BUSY:
            return Settled.empty(attempt)
        return Settled.whole(attempt, prompt_tokens, REFUSED if self.status >= 400 else LEFT)

    def put(self, frame: Frame) -> None:
        """Something more of the answer."""
        if isinstance(frame, bytes) and self._frames and isinstance(self._frames[-1], bytes):
            self._frames[-1] += frame  # a reader that is behind gets several at once
        else:
            self._frames.append(frame)
        self._arrived.set()

    async def take(self) -> list[Frame]:
        """Wait for more of the answer; all that is there."""
        await self._arrived.wait()
        self._arrived.clear()
        frames, self._frames = self._frames, []
        return frames

    def leave(self) -> None:
        """Nobody waits any more: what a closed connection is to a server."""
        self._left.set()

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.put(Head(self.status, tuple(map(tuple, message["headers"]))))
        elif message["type"] == "http.response.body" and message.get("body"):
            self.put(message["body"])


def _capacity_tokens(engine: Engine) -> int:
    """What bounds a hit: the smallest group that keeps all tokens."""
    groups = engine.stats().groups
    whole = [group.total_blocks for group in groups if group.window_tokens is None]
    return engine.stats().block_size * min(whole or [max(group.total_blocks for group in groups)])
