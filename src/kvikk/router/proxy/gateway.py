"""Everything a request meets on its way, held together: one per router process."""

import asyncio
import time
from collections.abc import Coroutine, Iterator
from typing import Any

from kvikk.router.compiled import is_taken
from kvikk.router.proxy.access_log import AccessLog, Ended
from kvikk.router.proxy.bodies import BodyBudget
from kvikk.router.proxy.client import ClientConnection
from kvikk.router.proxy.descriptors import connections_within_limits
from kvikk.router.proxy.exchange import Exchange
from kvikk.router.proxy.fleet import Fleet
from kvikk.router.proxy.health import HealthChecks
from kvikk.router.proxy.keys import Keys
from kvikk.router.proxy.local import LocalRoutes
from kvikk.router.proxy.messages import RefusalError, answer
from kvikk.router.proxy.metrics import Answers, family, histogram_family
from kvikk.router.proxy.options import RouterOptions
from kvikk.router.proxy.placement import Placement
from kvikk.router.proxy.queue import WaitingQueue
from kvikk.router.proxy.request import ClientRequest

_TICK_S = 0.1
# Requests that may wait to be counted and logged, many at a time: what is done over and over again
# is done from the processor's caches.
_MOST_DUE = 16


class Gateway:
    """The state of a router. Connections, exchanges and routes call it; it has no sockets."""

    def __init__(
        self, options: RouterOptions, fleet: Fleet, placement: Placement, prefix: str
    ) -> None:
        self.options = options
        self.fleet = fleet
        self.placement = placement
        self.keys = Keys(options.api_keys, options.limits, options.admin_key)
        self.replica_key = None if options.replica_key is None else options.replica_key.encode()
        # Its own name among the routers that a request may pass.
        self.via = b"1.1 kvikk-" + prefix.rstrip("-").encode()
        self.bodies = BodyBudget(options.max_buffered_bytes)
        self.passes_keys = not options.api_keys and options.replica_key is None
        self.most_clients = options.max_connections or connections_within_limits()
        self.waiting = WaitingQueue(options.max_queue)
        self.health = HealthChecks(fleet, options.health_interval_s, self.replica_key)
        self.local = LocalRoutes(self)
        self.is_draining = False
        self.retries = 0
        self._log = AccessLog(options.access_log)
        self._id_prefix = prefix
        self._named = 0
        self._clients: set[ClientConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: dict[str, Answers] = {}  # by replica, "none" where there was none
        self._due: list[Ended] = []
        fleet.on_change = self.wake
        fleet.on_join = self.health.begin

    # Connections.

    def joined(self, client: ClientConnection) -> None:
        """A client has connected. Raises RefusalError if there are too many."""
        self._clients.add(client)
        if len(self._clients) > self.most_clients:
            raise RefusalError(
                503,
                f"{self.most_clients:,} connections are open already",
                "overloaded",
                [(b"retry-after", b"1")],
            )

    def left(self, client: ClientConnection) -> None:
        """A client is gone."""
        self._clients.discard(client)

    # Requests.

    def name(self, request: ClientRequest) -> None:
        """Give a request an id, unless its client has."""
        if not request.id:
            self._named += 1
            request.id = self._id_prefix + format(self._named, "08x")

    def admits(self, request: ClientRequest) -> bool:
        """Take in a request with a known head, named and timed; False if it is to be refused."""
        if self.is_draining or request.size_bytes > self.options.max_body_bytes:
            return False
        try:
            self.bodies.take(request, request.size_bytes)
        except RefusalError:
            return False
        self.name(request)
        request.arrived_s = time.monotonic()
        return True

    def check_caller(self, request: ClientRequest) -> None:
        """Before a body is read: who is it, and may it be asked? Raises RefusalError."""
        self.name(request)
        head = request.head
        if self.local.has(head.path):
            self.local.check(head)
            return
        head.tenant = self.keys.tenant(head.by_name)
        head.check_forwarded(self.options.forward)
        head.set_forwarded(self.replica_key)
        if self.is_draining:
            raise RefusalError(
                503, "the router is going away", "draining", [(b"retry-after", b"1")]
            )

    def handle(self, client: ClientConnection, request: ClientRequest) -> None:
        """A request is whole."""
        tenant = request.head.tenant
        if tenant is not None:
            client.exchange = Exchange(self, client, request, tenant)
            client.exchange.start()
            return
        try:
            status, media_type, body = self.local.reply(request)
        except RefusalError as refusal:
            self.bodies.give_back(request)
            client.refuse(request, refusal)
            return
        self.bodies.give_back(request)
        is_head = request.head.method == b"HEAD"
        closes = not request.keeps or self.is_draining
        client.answer(request, answer(status, body, media_type, is_head=is_head, closes=closes))

    def refused(self, request: ClientRequest, refusal: RefusalError) -> None:
        """A request did not get as far as to be handled."""
        self._of("none").count(refusal.status, None, 0.0)

    def ended(self, exchange: Exchange, status: int, error: str, now_s: float) -> None:
        """An exchange is over, and its load given back."""
        request, replica = exchange.request, exchange.replica
        self._due.append(
            Ended(
                time.time(),
                request.id,
                exchange.tenant.name,
                request.head,
                exchange.model,
                status,
                error,
                exchange.attempts,
                "none" if replica is None else replica.view.id,
                exchange.route,
                exchange.first_byte_s,
                now_s - request.arrived_s,
                request.size_bytes,
                exchange.sent_bytes,
                exchange.reported,
            )
        )
        if len(self._due) >= _MOST_DUE:
            self._settle()
        self.wake()

    def _settle(self) -> None:
        """Count and log what has ended so far."""
        due, self._due = self._due, []
        for ended in due:
            answers = self._of(ended.replica)
            answers.count(ended.status, ended.first_byte_s, ended.whole_s)
        if self._log.is_open:
            for ended in due:
                self._log.write(ended)

    def wake(self) -> None:
        """A replica may have become free: let those who wait have it."""
        if len(self.waiting):
            self.waiting.wake(self._can_go)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run something beside."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run(self) -> None:
        """Look at the time, again and again, until cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            now_s = time.monotonic()
            for replica in self.fleet:
                replica.breaker.tick(now_s)
                if not replica.view.eligible:
                    self.fleet.update(replica)
            for client in tuple(self._clients):
                client.check(now_s)
            self._settle()
            self._log.flush()

    async def drain(self, patience_s: float) -> bool:
        """Take nothing new, and let running answers finish. Whether they all did in time."""
        self.is_draining = True
        for client in tuple(self._clients):
            client.close_if_idle()
        end_s = time.monotonic() + patience_s
        while self._running and time.monotonic() < end_s:
            await asyncio.sleep(0.05)
        is_clean = not self._running
        for client in tuple(self._clients):
            client.cut_off()
        return is_clean

    async def close(self) -> None:
        """Stop checks and close the log."""
        await self.health.close()
        self._settle()
        self._log.close()

    @property
    def _running(self) -> int:
        return sum(client.exchange is not None for client in self._clients)

    def _can_go(self, model: str) -> bool:
        return any(view.eligible for view in self.fleet.serving(model))

    # Figures.

    def exposition(self) -> str:
        """All figures, in Prometheus' text format."""
        self._settle()
        return "\n".join((*self._lines(), self.placement.metrics().rstrip("\n"), "")).lstrip()

    def _lines(self) -> Iterator[str]:
        fleet = tuple(self.fleet)

        def gauge(name: str, text: str, values: list[float]) -> Iterator[str]:
            labels = ({"replica": one.id} for one in fleet)
            return family(name, "gauge", text, zip(labels, values, strict=True))

        views = [one.view for one in fleet]
        yield from gauge(
            "kvikk_router_replica_eligible",
            "Whether a replica gets requests.",
            [view.eligible for view in views],
        )
        yield from gauge(
            "kvikk_router_replica_healthy",
            "Whether its checks go well.",
            [one.is_healthy for one in fleet],
        )
        yield from gauge(
            "kvikk_router_replica_running_requests",
            "Requests it has.",
            [view.running_requests for view in views],
        )
        yield from gauge(
            "kvikk_router_replica_running_tokens",
            "Prompt tokens of these.",
            [view.running_tokens for view in views],
        )
        yield from gauge(
            "kvikk_router_replica_waiting_tokens",
            "Prompt tokens it has yet to compute.",
            [view.waiting_tokens for view in views],
        )
        yield from family(
            "kvikk_router_replica_requests_total",
            "counter",
            "Requests sent to it.",
            (({"replica": one.id}, one.requests) for one in fleet),
        )
        yield from family(
            "kvikk_router_replica_errors_total",
            "counter",
            "Failures, by kind: connect, broken, timeout, or a status.",
            (
                ({"replica": one.id, "kind": kind}, count)
                for one in fleet
                for kind, count in sorted(one.errors.items())
            ),
        )
        yield from family(
            "kvikk_router_replica_restarts_total",
            "counter",
            "Times it came back as another process.",
            (({"replica": one.id}, one.restarts) for one in fleet),
        )
        yield from family(
            "kvikk_router_responses_total",
            "counter",
            "Answers given, by replica and status; 499: the client had gone.",
            (
                ({"replica": replica, "status": str(status)}, count)
                for replica, answers in sorted(self._answers.items())
                for status, count in sorted(answers.statuses.items())
            ),
        )
        for name, kind, text, value in (
            ("retries_total", "counter", "Attempts after the first.", self.retries),
            ("waiting_requests", "gauge", "Requests in the queue.", len(self.waiting)),
            ("client_connections", "gauge", "Open connections.", len(self._clients)),
            ("held_body_bytes", "gauge", "Request bodies in memory.", self.bodies.held_bytes),
            ("compiled", "gauge", "Whether the busiest modules run compiled.", is_taken()),
        ):
            yield from family(f"kvikk_router_{name}", kind, text, [({}, value)])
        yield from family(
            "kvikk_router_tenant_running_requests",
            "gauge",
            "Requests in progress, by API key.",
            (({"tenant": one.name}, one.running) for one in self.keys.tenants),
        )
        answered = sorted(self._answers.items())
        for name, text, histograms in (
            (
                "first_byte_seconds",
                "From a request to its answer's body.",
                [one.first_bytes for _, one in answered],
            ),
            (
                "request_seconds",
                "From a request to its answer's end.",
                [one.wholes for _, one in answered],
            ),
        ):
            labels = [{"replica": replica} for replica, _ in answered]
            samples = [pair for pair in zip(labels, histograms, strict=True) if pair[1].count]
            yield from histogram_family(f"kvikk_router_{name}", text, samples)

    def _of(self, replica: str) -> Answers:
        found = self._answers.get(replica)
        if found is None:
            found = self._answers[replica] = Answers()
        return found
