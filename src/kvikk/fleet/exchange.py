"""One request at the ingress, from the choice of a replica to the last byte and the account.

As long as the client has seen no byte another replica may be tried; after the first one never. The
client is watched all the while: when it goes, the attempt is cancelled and its replica told so,
since a cancellation can be lost on its way.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from starlette.types import Receive, Send

from kvikk.errors import BusyError
from kvikk.fleet.attempts import BUSY, Attempt, Frame, Head, HttpRequest, Tail
from kvikk.fleet.ledger.records import LEFT, REFUSED, Elsewhere
from kvikk.router.proxy.messages import RefusalError, error_event
from kvikk.router.proxy.placement import Asked, Outcome

if TYPE_CHECKING:
    from kvikk.fleet.ingress import Ingress

logger = logging.getLogger(__name__)

# How the last event of a stream begins, in each of the APIs.
_LAST_EVENTS = (b"data: [DONE]", b"event: message_stop", b"event: response.completed")
# Serve's proxy names every answer, and would name this one twice.
_DROPPED = (b"x-request-id",)


@dataclass(slots=True)
class _Sent:
    """One attempt at a replica, and how far it came; ``error`` is empty once all went well.

    ``counts`` is False once another one is to be made for the request.
    """

    attempt: Attempt
    replica: str
    began_s: float
    first_byte_s: float | None = None
    head: Head | None = None
    tail: Tail | None = None
    error: str = "client gone"
    counts: bool = True


class Exchange:
    """Carries one request; ``run`` is called once.

    ``wanted`` is the id of the only replica that can answer, "" where any can.
    """

    def __init__(
        self,
        ingress: "Ingress",
        request: HttpRequest,
        asked: Asked,
        *,
        wanted: str,
        has_prompt: bool,
    ) -> None:
        self._ingress = ingress
        self._members = ingress.members
        self._request = request
        self._asked = asked
        self._wanted = wanted
        self._has_prompt = has_prompt
        self._tried: set[str] = set()
        self._prompt_tokens = 0
        self._has_begun = False
        self._tail_bytes = b"\n\n"
        self._passed_bytes = 0

    async def run(self, receive: Receive, send: Send) -> None:
        """Answer, or stop when the client goes. RefusalError or BusyError if nobody answers."""
        work = asyncio.create_task(self._answer(send))
        watcher = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait({work, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            for task in (watcher, work):
                task.cancel()
                with suppress(asyncio.CancelledError, RefusalError, BusyError):
                    await task

    async def _answer(self, send: Send) -> None:
        for left in range(self._ingress.options.retries, -1, -1):
            if await self._attempt(send, left):
                return

    async def _attempt(self, send: Send, left: int) -> bool:
        """Ask one replica, with so many attempts ``left``; whether the client has its answer."""
        attempt_id = self._ingress.ledger.mint()
        attempt = Attempt(
            attempt_id,
            self._asked.named(attempt_id),
            self._has_prompt,
            self._wanted,
            frozenset(self._tried),
        )
        members, sent = self._members, None
        try:
            async with self._ingress.answering.choose_replica(attempt) as chosen:
                replica = chosen.replica_id
                if attempt.decision is None or attempt.decision.replica.id != replica:
                    # The best were full.
                    await members.ask(members.taken, attempt, replica)
                sent = _Sent(attempt, replica, time.monotonic())
                return await self._send(chosen, sent, send, left)
        except asyncio.CancelledError:
            if sent is None or not sent.counts:
                self._turn_away(attempt, LEFT)
            raise
        except Exception as error:
            if sent is None or not sent.counts:
                self._turn_away(attempt, REFUSED)
            if isinstance(error, BackPressureError):
                raise BusyError("as many requests wait as may; try again soon") from None
            if isinstance(error, (RayServeException, RayError)):
                why = f"no replica: {_first_line(error)}"
                raise RefusalError(503, why, "no_replica") from None
            raise
        finally:
            self._ended(attempt, sent)

    async def _send(self, chosen: Any, sent: _Sent, send: Send, left: int) -> bool:
        attempt, ledger = sent.attempt, self._ingress.ledger
        prompt_tokens = 0
        if self._has_prompt:
            prompt_tokens = self._prompt_tokens = (
                attempt.routed.prompt_tokens if attempt.routed else 1
            )
            ledger.open(attempt.id, sent.replica, prompt_tokens, elsewhere=_elsewhere(attempt))
        frames = self._ingress.answering.dispatch(chosen, attempt.id, self._request, prompt_tokens)
        try:
            sent.counts = await self._relay(frames, sent, send, left)
            sent.error = "" if sent.counts else "busy"
        except RayError as error:
            # A replica that has no end of its own was cut off: it, its node, or the way there.
            sent.error = "broken"
            logger.warning("%s at %s: %s", attempt.id, sent.replica, _first_line(error))
            self._failed(sent.replica)
            sent.counts = await self._break_off(send, left)
        finally:
            if sent.tail is None:
                frames.cancel()
                self._ingress.stop(attempt.id)
            elif sent.tail.batch is not None:
                ledger.receive(sent.tail.batch)
            if self._has_prompt:
                ledger.ended(attempt.id, superseded=not sent.counts)
        return sent.counts

    async def _relay(
        self, frames: AsyncIterator[Frame], sent: _Sent, send: Send, left: int
    ) -> bool:
        """Hand the answer on; False if the replica is busy and another one can be asked."""
        async for frame in frames:
            if isinstance(frame, Head):
                sent.head = frame
                if frame.status in BUSY and left and self._others(sent.replica):
                    self._failed(sent.replica)
            elif isinstance(frame, Tail):
                sent.tail = frame
                if sent.replica in self._tried:
                    return False
                await self._pass_on(b"", sent, send, more=False)
            elif sent.replica not in self._tried:
                await self._pass_on(frame, sent, send, more=True)
        return True

    async def _pass_on(self, content: bytes, sent: _Sent, send: Send, *, more: bool) -> None:
        """The head goes with the first of the body: until then another replica can be asked."""
        head = sent.head
        assert head is not None
        if not self._has_begun:
            self._has_begun = True
            sent.first_byte_s = time.monotonic() - sent.began_s
            self._members.post(self._members.first_token, sent.attempt)
            headers = [*self._headers(head, sent)]
            await send({"type": "http.response.start", "status": head.status, "headers": headers})
        if content:
            self._tail_bytes = content[-2:]
        self._passed_bytes += len(content)
        if self._is_whole(head, content):  # the client may go before its replica's account is here
            sent.error = ""
        await send({"type": "http.response.body", "body": content, "more_body": more})

    def _is_whole(self, head: Head, content: bytes) -> bool:
        """Whether the client has all of its answer, of which ``content`` came last."""
        if dict(head.headers).get(b"content-length") == b"%d" % self._passed_bytes:
            return True
        return content.rstrip().rpartition(b"\n\n")[2].startswith(_LAST_EVENTS)

    def _headers(self, head: Head, sent: _Sent) -> list[tuple[bytes, bytes]]:
        headers = [(name, value) for name, value in head.headers if name not in _DROPPED]
        for name, value in headers:
            if name == b"request-id":
                self._ingress.remember(value.decode(), sent.replica)
        decision = sent.attempt.decision
        headers.append((b"x-kvikk-replica", sent.replica.encode()))
        if decision is not None:
            headers.append((b"x-kvikk-route", decision.header.encode()))
        return headers

    async def _break_off(self, send: Send, left: int) -> bool:
        """The replica is gone: True if the client was told, False if another can be asked."""
        why = "the replica failed or its node did"
        if not self._has_begun:
            if left:
                return False
            raise RefusalError(502, f"no replica answered; the last: {why}", "replica_failed")
        if self._tail_bytes.endswith(b"\n\n"):
            event = error_event(
                502, f"the answer broke off: {why}", "replica_failed", self._request.path
            )
            await send({"type": "http.response.body", "body": event, "more_body": False})
            return True
        # Within an event nothing can be said; that the answer has no end is what tells.
        raise ConnectionError(f"the answer broke off: {why}")

    def _others(self, replica: str) -> bool:
        return any(name != replica and name not in self._tried for name in self._members.views)

    def _failed(self, replica: str) -> None:
        """This one is not asked again for this request."""
        self._tried.add(replica)
        self._wanted = ""

    def _turn_away(self, attempt: Attempt, cause: str) -> None:
        """It was never sent."""
        if self._has_prompt:
            known = attempt.routed.prompt_tokens if attempt.routed else self._prompt_tokens
            self._ingress.turn_away(self._asked, known, cause)

    def _ended(self, attempt: Attempt, sent: _Sent | None) -> None:
        attempt.ended = True
        outcome = Outcome(0, "not sent", None, 0.0, None)
        if sent is not None:
            outcome = Outcome(
                sent.head.status if sent.head else 0,
                sent.error,
                sent.first_byte_s,
                time.monotonic() - sent.began_s,
                sent.tail.usage if sent.tail else None,
            )
        self._members.post(self._members.settle, attempt, outcome)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _elsewhere(attempt: Attempt) -> Elsewhere | None:
    """What another replica held of the prompt when this one was chosen."""
    decision = attempt.decision
    if decision is None or not decision.elsewhere_tokens:
        return None
    held = decision.hit_tokens + decision.elsewhere_tokens
    return Elsewhere(held, decision.elsewhere, decision.elsewhere_because)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
