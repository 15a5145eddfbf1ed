"""One request's life: wait, choose a replica, send, hand the answer on, and account for it.

Whatever happens, an exchange ends once, in ``_end``; there it gives back what it took. Nothing of
an answer is sent twice: as long as the client has seen no byte, another replica may be tried, and
after the first byte never.
"""

import hashlib
import time
from typing import TYPE_CHECKING

import orjson

from kvikk.errors import BusyError
from kvikk.router.proxy.messages import (
    HOP_BY_HOP,
    RefusalError,
    connection_named,
    error_event,
    status_line,
)
from kvikk.router.proxy.placement import Asked, Outcome
from kvikk.router.proxy.replica import Load, Replica
from kvikk.router.proxy.request import ClientRequest
from kvikk.router.proxy.response import Response
from kvikk.router.proxy.upstream import UpstreamConnection
from kvikk.router.proxy.usage import UsageReader
from kvikk.router.records import Decision, RoutedRequest

if TYPE_CHECKING:
    from kvikk.router.proxy.client import ClientConnection
    from kvikk.router.proxy.gateway import Gateway

# An answer of at most this size waits until it is whole: no one can use half of it, and should the
# replica die meanwhile, another can be asked.
_HELD_BYTES = 64 << 10
# It has too much to do, or would send the request round in a circle: nothing has been computed.
_ASK_ANOTHER = frozenset((429, 503, 508))
# A parsed body takes up to 20 times its bytes. A larger one is parsed again if it is sent again.
_KEPT_PARSED_BYTES = 64 << 10


class Exchange:
    """A request and its answer. ``model`` is "" where the request names none."""

    def __init__(
        self, gateway: "Gateway", client: "ClientConnection", request: ClientRequest
    ) -> None:
        assert request.tenant is not None
        self._gateway = gateway
        self._client = client
        self.request = request
        self.tenant = request.tenant
        self.model = ""
        self.replica: Replica | None = None
        self.decision: Decision | None = None
        self.route = ""
        self.attempts = 0
        self._sends = 0
        self.first_byte_s: float | None = None
        self.sent_bytes = 0
        self._asked: Asked | None = None
        self._routed: RoutedRequest | None = None
        self._load: Load | None = None
        self._connection: UpstreamConnection | None = None
        self._response: Response | None = None
        self._usage: UsageReader | None = None
        self._tried: set[int] = set()
        self._attempt_s = 0.0
        self._waits_since_s: float | None = None
        self._moved_s = 0.0
        self._has_moved = False
        self._head = b""
        self._held: list[bytes] | None = None
        self._tail = b"\n\n"
        self._swallows = False
        self._is_entered = False
        self.is_done = False

    # From the client.

    def start(self) -> None:
        """Take the request up: a place among the tenant's, a replica or a place in the queue."""
        try:
            self._read()
            self.tenant.enter()
            self._is_entered = True
        except RefusalError as refusal:
            self._refuse(refusal)
            return
        self.dispatch()

    def client_gone(self) -> None:
        """Nobody waits for the answer any more: whoever works on it is to stop."""
        if not self.is_done:
            self._end(499, "client gone", keeps=False)

    def cut_off(self) -> None:
        """The router ends, and waits no longer."""
        self._too_late("the router is going away", False, 503)

    def pause(self) -> None:
        """The client does not keep up."""
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """The client has caught up."""
        if self._connection is not None:
            self._connection.resume()

    # The way to a replica.

    def dispatch(self) -> None:
        """Ask where it shall go, and send it there; or wait if nobody can take it."""
        gateway = self._gateway
        self._waits_since_s = None
        self._routed = gateway.placement.read(self._asked or self._ask())
        if len(self.request.body) > _KEPT_PARSED_BYTES:
            self._asked = None
        try:
            decision = gateway.placement.decide(
                self._routed, gateway.fleet.serving(self.model), self._tried
            )
        except BusyError as error:
            self._wait(error)
            return
        replica = gateway.fleet[decision.replica.slot]
        self.decision, self.replica, self.route = decision, replica, decision.header
        self._load = Load(replica, self._routed.prompt_tokens, decision.hit_tokens)
        self.attempts += 1
        self._attempt_s = time.monotonic()
        connection = replica.pool.take()
        if connection is None:
            gateway.spawn(self._connect(replica))
        else:
            self._send(connection)

    async def _connect(self, replica: Replica) -> None:
        attempt = self.attempts
        try:
            connection = await replica.pool.connect()
        except OSError as error:
            if not self.is_done and attempt == self.attempts:
                self._gateway.health.suspect(replica, "no connection")
                reason = "no connection in time" if isinstance(error, TimeoutError) else str(error)
                self._fail_over("connect", reason)
            return
        if self.is_done or attempt != self.attempts:
            replica.pool.freed(connection)
        else:
            self._send(connection)

    def _send(self, connection: UpstreamConnection) -> None:
        assert self.replica is not None
        origin, gateway = self.replica.pool.origin, self._gateway
        self._connection = connection
        self._sends += 1
        self._response = None
        self._moved_s = time.monotonic()
        head = self.request.upstream_head(
            origin.authority, origin.prefix, gateway.replica_key, gateway.via
        )
        connection.send(self, head, self.request.body)
        if self._client.is_write_paused:  # with an earlier answer
            connection.pause()

    def _wait(self, error: BusyError) -> None:
        """Stand in the queue; or give up where all who could take it have failed."""
        gateway = self._gateway
        if any(view.eligible for view in gateway.fleet.serving(self.model)):
            self._refuse(RefusalError(502, f"every replica that could answer failed: {error}"))
            return
        self._tried.clear()
        try:
            gateway.waiting.add(self)
        except RefusalError as refusal:
            self._refuse(refusal)
            return
        self._waits_since_s = time.monotonic()

    # From the replica.

    def on_response(self, response: Response) -> None:
        """The head is there: rewrite it, unless somebody else should be asked."""
        assert self.replica is not None
        self._response = response
        status, breaker = response.status, self.replica.breaker
        if status >= 500:
            breaker.failed(time.monotonic())
            self.replica.errors[str(status)] += 1
        else:
            breaker.succeeded()
        if status in _ASK_ANOTHER and self._can_ask_another():
            self._swallows = True
            return
        request = self.request
        if not response.has_length or (request.is_http10 and response.is_chunked):
            request.keeps = False
        self._head = self._response_head(response)
        if response.content_length is not None and response.content_length <= _HELD_BYTES:
            self._held = []
        if status == 200 and not response.is_encoded:
            self._usage = UsageReader(response.is_stream)

    def on_data(self, data: bytes, pieces: list[bytes], is_last: bool) -> None:
        """Bytes of the answer: hand them on as they came."""
        if self._swallows:
            if is_last:
                self._swallows = False
                assert self._response is not None
                self._connection = None
                self._fail_over(str(self._response.status), "the replica is busy", counts=False)
            return
        self._has_moved = True
        if pieces:
            if self.first_byte_s is None:
                self.first_byte_s = time.monotonic() - self.request.arrived_s
                if self._load is not None:
                    self._load.first_token()
            self._tail = pieces[-1]
            if self._usage is not None:
                for piece in pieces:
                    self._usage.feed(piece)
        if self.request.is_http10:
            data = b"".join(pieces)
        if self._head:
            data = self._head + data
            self._head = b""
        if self._held is not None:
            self._held.append(data)
            if not is_last:
                return
            data = self._held[0] if len(self._held) == 1 else b"".join(self._held)
            self._held = None
        if data:
            if not self.sent_bytes:  # from here on nothing is sent again
                self._gateway.bodies.give_back(self.request)
                self._asked = None
            self.sent_bytes += len(data)
            self._client.write(data)
        if is_last:
            assert self._response is not None
            self._connection = None
            self._end(self._response.status, "", keeps=self.request.keeps)

    def on_lost(self, why: str) -> None:
        """The answer breaks off, or never came."""
        connection, self._connection = self._connection, None
        assert connection is not None
        assert self.replica is not None
        if self.sent_bytes == 0:
            if connection.requests > 1 and self._response is None:
                # It had been in wait and was closed just then; that says nothing of the replica.
                self._sends -= 1
                self._gateway.spawn(self._connect(self.replica))
                return
            self._gateway.health.suspect(self.replica, why)
            self._fail_over("broken", why)
            return
        self._gateway.health.suspect(self.replica, why)
        self._count_failure("broken")
        self._break_off(502, f"the answer broke off: {why}", connection.at_boundary)

    # Time.

    def check(self, now_s: float) -> None:
        """See whether something takes too long."""
        options = self._gateway.options
        if self._has_moved:
            self._has_moved, self._moved_s = False, now_s
        if self._waits_since_s is not None:
            if now_s - self._waits_since_s > options.queue_timeout_s:
                self._refuse(
                    RefusalError(
                        503,
                        f"no replica could take it within {options.queue_timeout_s:g} s",
                        "no_replica",
                        [(b"retry-after", b"5")],
                    )
                )
        elif options.total_timeout_s and now_s - self.request.arrived_s > options.total_timeout_s:
            self._too_late(f"the answer took longer than {options.total_timeout_s:g} s", False)
        elif self._connection is None:
            return
        elif self.first_byte_s is None:
            if now_s - self._moved_s > options.first_byte_timeout_s:
                self._too_late(f"no answer within {options.first_byte_timeout_s:g} s", True)
        elif now_s - self._moved_s > options.idle_timeout_s and self._client.is_write_paused:
            self._end(504, f"nothing was taken for {options.idle_timeout_s:g} s")
            self._client.transport.abort()
        elif now_s - self._moved_s > options.idle_timeout_s:
            self._too_late(f"the answer stood still for {options.idle_timeout_s:g} s", True)

    # Within.

    def _read(self) -> None:
        """Find out what is asked for. Raises RefusalError."""
        fleet = self._gateway.fleet
        self._asked = self._ask()
        if not fleet.serving(self.model) and self.model and fleet.is_known:
            known = ", ".join(repr(name) for name in fleet.models()) or "none"
            raise RefusalError(
                404,
                f"no replica serves the model {self.model[:200]!r}; there is {known}",
                "model_not_found",
            )

    def _ask(self) -> Asked:
        """Parse the body. Raises RefusalError."""
        request = self.request
        value = None
        if request.body and b"json" in request.by_name.get(b"content-type", b"json"):
            try:
                value = orjson.loads(request.body)
            except orjson.JSONDecodeError as error:
                raise RefusalError(400, f"the body is not valid JSON: {error}") from None
            if not isinstance(value, dict):
                raise RefusalError(400, "the body: expected a JSON object")
            model = value.get("model")
            if model is not None and not isinstance(model, str):
                raise RefusalError(400, "model: expected a string")
            self.model = model or ""
        salt = self.tenant.salt
        bearer = request.by_name.get(b"authorization")
        if not salt and bearer is not None and self._gateway.passes_keys:
            salt = hashlib.sha256(b"kvikk tenant\0" + bearer.partition(b" ")[2].strip()).digest()
        return Asked(
            request.id,
            request.path,
            self.model,
            self.tenant.name,
            salt,
            request.body,
            value,
            request.by_name,
        )

    def _response_head(self, response: Response) -> bytes:
        request, headers = self.request, response.headers
        assert self.replica is not None
        hop = HOP_BY_HOP
        has_id = False
        for lower, _, _ in headers:
            if lower == b"connection":
                hop = connection_named(headers)
            elif lower == b"x-request-id":
                has_id = True
        parts = [status_line(response.status)]
        for lower, name, value in headers:
            if lower not in hop:
                parts.append(b"%b: %b\r\n" % (name, value))
        if not has_id:
            parts.append(b"x-request-id: %b\r\n" % request.id.encode())
        parts.append(
            b"x-kvikk-replica: %b\r\nx-kvikk-route: %b\r\n"
            % (self.replica.id.encode(), self.route.encode())
        )
        if response.is_chunked and not request.is_http10:
            parts.append(b"transfer-encoding: chunked\r\n")
        if not request.keeps or self._gateway.is_draining:
            parts.append(b"connection: close\r\n")
        elif request.is_http10:
            parts.append(b"connection: keep-alive\r\n")
        parts.append(b"\r\n")
        return b"".join(parts)

    def _can_ask_another(self) -> bool:
        assert self.replica is not None
        own = self.replica.view.slot
        return self._sends <= self._gateway.options.retries and any(
            view.eligible and view.slot != own and view.slot not in self._tried
            for view in self._gateway.fleet.serving(self.model)
        )

    def _count_failure(self, kind: str) -> None:
        assert self.replica is not None
        self.replica.errors[kind] += 1
        self.replica.breaker.failed(time.monotonic())

    def _fail_over(self, kind: str, why: str, counts: bool = True) -> None:
        """Nothing was sent yet: ask another replica, if there may be another attempt."""
        assert self.replica is not None
        if counts:
            self._count_failure(kind)
        self._tried.add(self.replica.view.slot)
        self._end_attempt(0, kind)
        self._head, self._held, self._usage, self._tail = b"", None, None, b"\n\n"
        self.first_byte_s = None
        self._gateway.counts["retries"] += 1
        # A request that was never sent may be tried everywhere; one that was might be the culprit.
        if self._sends <= self._gateway.options.retries:
            self.dispatch()
        else:
            self._refuse(RefusalError(502, f"{self.attempts} attempts failed; the last: {why}"))

    def _too_late(self, why: str, is_fault: bool, status: int = 504) -> None:
        if is_fault:
            self._count_failure("timeout")
        boundary = self._connection is None or self._connection.at_boundary
        if self.sent_bytes:
            self._break_off(status, why, boundary)
        else:
            self._refuse(RefusalError(status, why, "timeout" if status == 504 else "draining"))

    def _break_off(self, status: int, why: str, at_boundary: bool) -> None:
        """Tell a client that has part of the answer that no more will come."""
        response = self._response
        assert response is not None
        is_whole = False
        if response.is_stream and at_boundary and self._tail.endswith((b"\n\n", b"\r\n\r\n")):
            event = error_event(status, why, "replica_failed", self.request.path)
            if response.is_chunked and not self.request.is_http10:
                event = b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event)
                is_whole = True
            self._client.write(event)
        # Within an event or a chunk nothing can be said; the end of the connection tells.
        self._end(status, why, keeps=is_whole and self.request.keeps)

    def _refuse(self, refusal: RefusalError) -> None:
        """Answer with an error of our own."""
        self._end(refusal.status, str(refusal), refusal=refusal)

    def _end_attempt(self, status: int, error: str) -> None:
        """The replica has nothing more to do for this request."""
        load, self._load = self._load, None
        if load is None:
            return
        load.release()
        assert self._routed is not None
        assert self.decision is not None
        assert self.replica is not None
        if self._usage is not None:
            self._usage.close()
        now_s = time.monotonic()
        first = self.first_byte_s
        if first is not None:
            first -= self._attempt_s - self.request.arrived_s
        if self._gateway.fleet.has(self.replica):
            outcome = Outcome(
                status,
                error,
                first,
                now_s - self._attempt_s,
                self._usage.reported if self._usage is not None else None,
            )
            self._gateway.placement.answered(self._routed, self.decision, outcome)

    def _end(
        self, status: int, error: str, *, keeps: bool = False, refusal: RefusalError | None = None
    ) -> None:
        """The one end of every exchange."""
        assert not self.is_done, "an exchange ends once"
        self.is_done = True
        if self._waits_since_s is not None:
            self._gateway.waiting.remove(self)
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abandon()
        self._end_attempt(status, error)
        self._gateway.bodies.give_back(self.request)
        if self._is_entered:
            self.tenant.leave()
        self._client.exchange = None
        self._gateway.ended(self, status, error, self._usage)
        if refusal is not None:
            self._client.refuse(self.request, refusal)
        else:
            self._client.exchange_ended(keeps)
