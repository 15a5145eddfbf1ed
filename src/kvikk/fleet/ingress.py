"""The fleet's front: takes a request, has a replica chosen, hands the answer on as it comes.

What an answer looks like is the replica's business, whose bytes pass as they are. What is here is
what `kvikk route` does: keys, which replica, another one if the first fails before its first byte,
a clear end if it fails later, and an account of every attempt.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Coroutine, Mapping
from typing import Any

import orjson
from ray.serve.exceptions import DeploymentUnavailableError
from starlette.types import Receive, Scope, Send

from kvikk.errors import BusyError
from kvikk.fleet.attempts import HttpRequest
from kvikk.fleet.exchange import Exchange
from kvikk.fleet.ledger.books import FleetLedger
from kvikk.fleet.ledger.figures import exposition, ledger_json
from kvikk.fleet.members import Members, find_members
from kvikk.fleet.options import FleetOptions
from kvikk.router.proxy.messages import RefusalError, error_json
from kvikk.router.proxy.placement import Asked
from kvikk.server.keys import Caller

logger = logging.getLogger(__name__)

# These have a prompt that a replica computes.
_PROMPTS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
    "/v1/embeddings",
)
# What a replica tells of itself or of one request: asked of the one that is meant.
_ABOUT_ONE = ("/v1/kvikk/", "/v1/responses/")
_KEPT_ANSWERS = 1 << 16
_SETTLE_S = 1.0
_ANSWER_S = 5.0
# The proxy would go on reading an answer that nobody waits for.
_FORBIDDEN = b"x-request-disconnect-disabled"


class Ingress:
    """One ingress: an ASGI application in front of ``engines``, a handle of Ray Serve's.

    ``node`` is where it runs.
    """

    def __init__(
        self, options: FleetOptions, application: str, engines: Any, node: str = ""
    ) -> None:
        self.options = options
        self.ledger = FleetLedger()
        self.engines = engines
        self.answering = engines.options(method_name="answer", stream=True)
        self._application = application
        self._node = node
        self._answered: OrderedDict[str, str] = OrderedDict()  # who answered, by request id
        self._tasks: set[asyncio.Task[object]] = set()

    @property
    def _has_router(self) -> bool:
        members = find_members(self._application)
        return members is not None and members.loop is not None

    @property
    def members(self) -> Members:
        """Who there is. RefusalError (503) before Serve has made the request router."""
        members = find_members(self._application)
        if members is None or members.loop is None:
            raise RefusalError(503, "the fleet is starting", "starting", [(b"retry-after", b"1")])
        return members

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; or live, from Serve's start to its end of this."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        if scope["type"] != "http":
            return
        try:
            await self._answer(scope, receive, send)
        except RefusalError as refusal:
            await refuse(scope, send, refusal)
        except BusyError as error:
            headers = [(b"retry-after", str(error.retry_after_s).encode())]
            await refuse(scope, send, RefusalError(429, str(error), "busy", headers))

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        settling = asyncio.create_task(self._settle())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        settling.cancel()
        await send({"type": "lifespan.shutdown.complete"})

    async def _settle(self) -> None:
        """Fetch what replicas have settled and have not been able to tell, every now and then."""
        while True:
            await asyncio.sleep(_SETTLE_S)
            try:
                # Asked in any case: it tells replicas what has arrived, and the first call of a
                # handle makes its router, which learns who there is.
                for batch in await self._ask_all("collect", self.ledger.ask()):
                    self.ledger.receive(batch)
                if self._has_router:
                    self.ledger.fleet(set(self.members.views))
            except Exception:
                logger.exception("settling accounts failed; it is tried again")

    def stop(self, attempt: str) -> None:
        """Tell the replica that nobody waits for this attempt, whichever it is."""
        self._go_on(self._ask_all("stop", attempt))

    def turn_away(self, asked: Asked, prompt_tokens: int, cause: str) -> None:
        """Account for a request that nobody was asked for; 0 if its prompt was not looked at."""
        if prompt_tokens:
            self.ledger.turn_away(prompt_tokens, cause)
        else:
            self._go_on(self._read_and_turn_away(asked, cause))

    async def _read_and_turn_away(self, asked: Asked, cause: str) -> None:
        members = self.members
        request = await members.ask(members.placement.read, asked)
        self.ledger.turn_away(request.prompt_tokens, cause)

    def _go_on(self, work: Coroutine[Any, Any, object]) -> None:
        """Have this done; nobody waits for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def remember(self, request_id: str, replica: str) -> None:
        """This replica answered that request, and can tell of it."""
        self._answered[request_id] = replica
        if len(self._answered) > _KEPT_ANSWERS:
            self._answered.popitem(last=False)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if any(name == _FORBIDDEN for name, _ in scope["headers"]):
            raise RefusalError(400, f"the header {_FORBIDDEN.decode()} is not taken here")
        own = await self._own(scope)
        if own is not None:
            await reply(scope, send, 200, own[1], own[0])
            return
        body = await read_body(receive, self.options.server.max_body_bytes)
        request = HttpRequest(
            method,
            path,
            scope["query_string"],
            tuple((name, value) for name, value in scope["headers"]),
            body,
            tuple(scope["client"]) if scope.get("client") else None,
        )
        has_prompt = method == "POST" and path in _PROMPTS
        asked = _asked(request, scope.get("state", {}).get("caller"))
        wanted = self._wanted(path, asked.json)
        exchange = Exchange(self, request, asked, wanted=wanted, has_prompt=has_prompt)
        await exchange.run(receive, send)

    async def _own(self, scope: Scope) -> tuple[str, bytes] | None:
        """Media type and body of what the ingress answers itself."""
        path = scope["path"]
        if scope["method"] not in ("GET", "HEAD"):
            return None
        if path == "/health":
            if not self.members.views:
                raise RefusalError(503, "no replica is ready", "no_replica")
            return "application/json", b'{"status":"ok"}'
        if path == "/metrics":
            _require_operator(scope)
            return "text/plain; version=0.0.4", (await self._metrics()).encode()
        if path == "/v1/kvikk/fleet":
            _require_operator(scope)
            return "application/json", orjson.dumps(await self._fleet())
        return None

    async def _ask_all(self, method: str, *arguments: Any) -> list[Any]:
        """What the replicas answer; those that cannot are left out."""
        response = self.engines.broadcast(method, *arguments)
        try:
            answers = await response.results_async(timeout_s=_ANSWER_S, return_exceptions=True)
        except (TimeoutError, DeploymentUnavailableError):  # the fleet is being ended
            return []
        return [one for one in answers if not isinstance(one, BaseException)]

    async def _metrics(self) -> str:
        members = self.members
        return f"{await members.ask(members.placement.metrics)}\n{exposition(self.ledger)}"

    async def _fleet(self) -> dict[str, Any]:
        """The router's figures; beside each replica its own, and the fleet's ledger."""
        members = self.members
        told = await self._ask_all("figures")
        own = {figures.pop("id"): figures for figures in told}

        def read() -> dict[str, Any]:
            _, found = members.placement.page("/v1/kvikk/fleet") or ("", b"{}")
            shown: dict[str, Any] = orjson.loads(found)
            for replica in shown["replicas"]:
                member = members.members[replica["id"]]
                del replica["url"]
                replica |= {"node": member.node, "pid": member.pid, "epoch": member.epoch}
                replica["engine"] = own.get(replica["id"])
            return shown

        return {
            "name": self.options.name,
            "node": self._node,
            "model": self.options.server.engine.model,
            **await members.ask(read),
            "ledger": ledger_json(self.ledger),
        }

    def _wanted(self, path: str, body: Mapping[str, Any] | None) -> str:
        """The one replica that can answer this, by its id; "" where any can."""
        previous = body.get("previous_response_id") if body else None
        if isinstance(previous, str):
            return self._answered.get(previous, "")
        if path.startswith(_ABOUT_ONE):
            return self._answered.get(path.rpartition("/")[2], "")
        return ""


def _asked(request: HttpRequest, caller: Caller | None) -> Asked:
    """The request in the router's words. Raises RefusalError for a body that is no JSON object."""
    body: Any = None
    if request.body:
        try:
            body = orjson.loads(request.body)
        except orjson.JSONDecodeError:
            body = None  # the replica says what is wrong with it
    value = body if isinstance(body, dict) else None
    model = value.get("model") if value else None
    return Asked(
        "",
        request.path,
        model if isinstance(model, str) else "",
        "default" if caller is None else caller.tenant,
        b"" if caller is None else caller.salt,
        request.body,
        value,
        dict(request.headers),
    )


async def read_body(receive: Receive, max_bytes: int) -> bytes:
    """A request's body. Raises RefusalError (413) where it is too long, or nobody sends more."""
    parts: list[bytes] = []
    num_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RefusalError(400, "the connection closed before the request was complete")
        part = message.get("body", b"")
        num_bytes += len(part)
        if num_bytes <= max_bytes:
            parts.append(part)
        if not message.get("more_body", False):
            break
    if num_bytes > max_bytes:
        raise RefusalError(
            413, f"the body is longer than the limit of {max_bytes} bytes", "request_too_large"
        )
    return b"".join(parts)


async def refuse(scope: Scope, send: Send, refusal: RefusalError) -> None:
    """Answer with an error of our own."""
    body = error_json(refusal.status, str(refusal), refusal.code, scope["path"])
    await reply(scope, send, refusal.status, body, "application/json", refusal.headers)


async def reply(
    scope: Scope,
    send: Send,
    status: int,
    body: bytes,
    media_type: str,
    headers: Any = (),
) -> None:
    """A whole answer."""
    own = [
        (b"content-type", media_type.encode()),
        (b"content-length", str(len(body)).encode()),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": own})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _require_operator(scope: Scope) -> None:
    caller: Caller | None = scope.get("state", {}).get("caller")
    if caller is not None and not caller.is_operator:
        raise RefusalError(403, "this concerns all tenants; send the operator's key", "forbidden")
