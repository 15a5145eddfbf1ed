"""One request's life: wait, choose a replica, send, hand the answer on, and account for it.

Whatever happens, an exchange ends once, in ``_end``; there it gives back what it took. Nothing of
an answer is sent twice: as long as the client has seen no byte, another replica may be tried, and
after the first byte never.
"""

import time
from typing import TYPE_CHECKING

from kvikk.errors import BusyError
from kvikk.router.proxy.asking import ask
from kvikk.router.proxy.keys import Tenant
from kvikk.router.proxy.messages import RefusalError
from kvikk.router.proxy.passing import Passing, Swallowed, response_head
from kvikk.router.proxy.placement import Asked, Outcome, Reported
from kvikk.router.proxy.replica import Replica, ReplicaLoad
from kvikk.router.proxy.request import ClientRequest
from kvikk.router.proxy.response import Response
from kvikk.router.proxy.upstream import Taker, UpstreamConnection
from kvikk.router.records import Decision, RoutedRequest

if TYPE_CHECKING:
    from kvikk.router.proxy.client import ClientConnection
    from kvikk.router.proxy.gateway import Gateway

# It has too much to do, or would send the request round in a circle: nothing has been computed.
_ASK_ANOTHER = frozenset((429, 503, 508))
# A parsed body takes up to 20 times its bytes. A larger one is parsed again if it is sent again;
# its memory serves the next one, while the processor's caches have it.
_KEPT_PARSED_BYTES = 4 << 10


class Exchange:
    """A request and its answer. ``model`` is "" where the request names none."""

    # As long as nothing has happened.
    model = ""
    replica: Replica | None = None
    decision: Decision | None = None
    route = ""
    attempts = 0
    first_byte_s: float | None = None
    is_done = False
    _sends = 0
    _asked: Asked | None = None
    _routed: RoutedRequest | None = None
    _load: ReplicaLoad | None = None
    _connection: UpstreamConnection | None = None
    _passing: Passing | None = None
    _attempt_s = 0.0
    _waits_since_s: float | None = None
    _moved_s = 0.0
    _status = 0  # the replica's, once it has answered
    _is_entered = False

    def __init__(
        self,
        gateway: "Gateway",
        client: "ClientConnection",
        request: ClientRequest,
        tenant: Tenant,
    ) -> None:
        self._gateway = gateway
        self._client = client
        self.request = request
        self.tenant = tenant
        self._tried: frozenset[int] = frozenset()

    @property
    def sent_bytes(self) -> int:
        """What the client was given of an answer."""
        return 0 if self._passing is None else self._passing.sent_bytes

    @property
    def reported(self) -> Reported | None:
        """What the replica said that it used."""
        usage = None if self._passing is None else self._passing.usage
        return None if usage is None else usage.reported

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
        gateway, placement = self._gateway, self._gateway.placement
        self._waits_since_s = None
        asked = self._asked or ask(self.request, self.tenant, gateway.passes_keys)
        views = gateway.fleet.serving(self.model)
        foreseen = placement.foresee(asked, views, self._tried)
        if foreseen is not None:
            self._attempt(gateway.fleet[foreseen.slot])
        self._routed = placement.read(asked)
        if len(self.request.body) > _KEPT_PARSED_BYTES:
            self._asked = None
        try:
            decision = placement.decide(self._routed, views, self._tried)
        except BusyError as error:
            self._wait(error)
            return
        replica = gateway.fleet[decision.replica.slot]
        self.decision, self.route = decision, decision.header
        self._load = ReplicaLoad(replica, self._routed.prompt_tokens, decision.hit_tokens)
        if foreseen is None:
            self._attempt(replica)
        else:
            assert replica is self.replica, "it was foreseen wrongly"

    def _attempt(self, replica: Replica) -> None:
        self.replica = replica
        self.attempts += 1
        self._attempt_s = self._moved_s = time.monotonic()
        connection = replica.pool.take()
        if connection is None:
            self._gateway.spawn(self._connect(replica))
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
            self._moved_s = time.monotonic()
            self._send(connection)

    def _send(self, connection: UpstreamConnection) -> None:
        assert self.replica is not None
        origin, request = self.replica.pool.origin, self.request
        self._connection = connection
        self._sends += 1
        self._status = 0
        head = request.upstream_head(origin.authority, origin.prefix, self._gateway.via)
        connection.send(self, head, request.body)
        if self._client.is_write_paused:  # with an earlier answer
            connection.pause()

    def _wait(self, error: BusyError) -> None:
        """Stand in the queue; or give up where all who could take it have failed."""
        gateway = self._gateway
        if any(view.eligible for view in gateway.fleet.serving(self.model)):
            self._refuse(RefusalError(502, f"every replica that could answer failed: {error}"))
            return
        self._tried = frozenset()
        try:
            gateway.waiting.add(self)
        except RefusalError as refusal:
            self._refuse(refusal)
            return
        self._waits_since_s = time.monotonic()

    # From the replica.

    def on_response(self, response: Response) -> Taker:
        """The head is there: rewrite it, unless somebody else should be asked."""
        assert self.replica is not None
        self._status = status = response.status
        breaker = self.replica.breaker
        if status >= 500:
            breaker.failed(time.monotonic())
            self.replica.errors[str(status)] += 1
        else:
            breaker.succeeded()
        if status in _ASK_ANOTHER and self._can_ask_another():
            return Swallowed(self)
        request = self.request
        if not response.has_length or (request.head.is_http10 and response.is_chunked):
            request.keeps = False
        closes = not request.keeps or self._gateway.is_draining
        head = response_head(response, request, self.replica.id, self.route, closes)
        passing = Passing(self, self._client.transport.write, request, response, head)
        self._passing = passing
        return passing

    def first_byte(self) -> None:
        """The body has begun."""
        self.first_byte_s = time.monotonic() - self.request.arrived_s
        if self._load is not None:
            self._load.first_token()

    def is_committed(self) -> None:
        """The client gets its first byte: from here on nothing is sent again."""
        self._gateway.bodies.give_back(self.request)
        self._asked = None

    def answered(self) -> None:
        """The client has been given the whole answer."""
        self._connection = None
        self._end(self._status, "", keeps=self.request.keeps)

    def swallowed(self) -> None:
        """The answer was read to its end, for nobody."""
        self._connection = None
        self._fail_over(str(self._status), "the replica is busy", counts=False)

    def on_lost(self, why: str) -> None:
        """The answer breaks off, or never came."""
        connection, self._connection = self._connection, None
        assert connection is not None
        assert self.replica is not None
        if self.sent_bytes == 0:
            if connection.requests > 1 and not self._status:
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
        if self._passing is not None and self._passing.has_moved:
            self._passing.has_moved, self._moved_s = False, now_s
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
        gateway = self._gateway
        fleet = gateway.fleet
        self._asked = ask(self.request, self.tenant, gateway.passes_keys)
        self.model = self._asked.model
        if not fleet.serving(self.model) and self.model and fleet.is_known:
            known = ", ".join(repr(name) for name in fleet.models()) or "none"
            raise RefusalError(
                404,
                f"no replica serves the model {self.model[:200]!r}; there is {known}",
                "model_not_found",
            )

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
        self._tried |= {self.replica.view.slot}
        self._end_attempt(0, kind, time.monotonic())
        self._passing = None
        self.first_byte_s = None
        self._gateway.retries += 1
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
        assert self._passing is not None
        is_whole = self._passing.break_off(status, why, at_boundary, self.request.head.path)
        self._end(status, why, keeps=is_whole and self.request.keeps)

    def _refuse(self, refusal: RefusalError) -> None:
        """Answer with an error of our own."""
        self._end(refusal.status, str(refusal), refusal=refusal)

    def _end_attempt(self, status: int, error: str, now_s: float) -> None:
        """The replica has nothing more to do for this request."""
        load, self._load = self._load, None
        if load is None:
            return
        load.release()
        assert self._routed is not None
        assert self.decision is not None
        assert self.replica is not None
        if self._passing is not None and self._passing.usage is not None:
            self._passing.usage.close()
        if self._gateway.fleet.has(self.replica):
            first = self.first_byte_s
            if first is not None:
                first -= self._attempt_s - self.request.arrived_s
            outcome = Outcome(status, error, first, now_s - self._attempt_s, self.reported)
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
        now_s = time.monotonic()
        self._end_attempt(status, error, now_s)
        self._gateway.bodies.give_back(self.request)
        if self._is_entered:
            self.tenant.leave()
        self._client.exchange = None
        self._gateway.ended(self, status, error, now_s)
        self._passing = None  # which knows this exchange: no circle stays behind
        if refusal is not None:
            self._client.refuse(self.request, refusal)
        else:
            self._client.exchange_ended(keeps)
