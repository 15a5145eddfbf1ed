"""What the router answers by itself: health, metrics, the models, and those who run it."""

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import orjson

from kvikk.errors import RequestError
from kvikk.router.proxy.messages import RefusalError
from kvikk.router.proxy.origin import parse_origin
from kvikk.router.proxy.replica import Replica
from kvikk.router.proxy.request import ClientRequest, RequestHead

if TYPE_CHECKING:
    from kvikk.router.proxy.gateway import Gateway

Reply = tuple[int, bytes, bytes]
"""Status, media type, body."""

_JSON = b"application/json"
_TEXT = b"text/plain; version=0.0.4; charset=utf-8"
_REPLICAS = "/v1/kvikk/replicas"


class LocalRoutes:
    """The router's own routes. ``check`` is asked before a body is read, ``reply`` after."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._since_s = time.time()

    def has(self, path: str) -> bool:
        """Whether ``path`` is answered here."""
        return (
            path in ("/healthz", "/health", "/metrics", "/")
            or path == "/v1/models"
            or path.startswith(("/v1/models/", "/v1/kvikk/", "/page/"))
        )

    def check(self, head: RequestHead) -> None:
        """Whether the caller may. Raises RefusalError."""
        keys, path = self._gateway.keys, head.path
        if path in ("/healthz", "/health", "/") or path.startswith("/page/"):
            return  # the page holds no data; what it shows it asks for with a key
        if path.startswith(_REPLICAS):
            keys.require_admin(head.by_name)
        elif path.startswith("/v1/models"):
            keys.tenant(head.by_name)
        elif keys.are_several:  # these show all tenants
            keys.require_admin(head.by_name)
        elif path != "/metrics":
            keys.tenant_or_admin(head.by_name)

    def reply(self, request: ClientRequest) -> Reply:
        """The answer. Raises RefusalError."""
        path, method = request.head.path, request.head.method
        if path.startswith(_REPLICAS):
            return self._replicas(method, path[len(_REPLICAS) :].strip("/"), request)
        if method not in (b"GET", b"HEAD"):
            raise RefusalError(405, f"{method.decode()} is not allowed on {path[:200]!r}")
        if path in ("/healthz", "/health"):
            return self._health()
        if path == "/metrics":
            return 200, _TEXT, self._gateway.exposition().encode()
        if path == "/v1/models":
            return _json(200, {"object": "list", "data": self._models()})
        if path.startswith("/v1/models/"):
            wanted = unquote(path.removeprefix("/v1/models/"))
            for card in self._models():
                if card["id"] == wanted:
                    return _json(200, card)
            raise RefusalError(
                404, f"no replica serves the model {wanted[:200]!r}", "model_not_found"
            )
        page = self._gateway.placement.page(path)
        if page is None:
            raise RefusalError(404, f"no such route {path[:200]!r}", "not_found")
        return 200, page[0].encode(), page[1]

    def _health(self) -> Reply:
        fleet = self._gateway.fleet
        usable = sum(one.is_healthy and not one.is_draining for one in fleet)
        if self._gateway.is_draining:
            status, word = 503, "draining"
        else:
            status, word = (200, "ok") if usable else (503, "no replica is well")
        return _json(status, {"status": word, "replicas": len(fleet), "usable": usable})

    def _models(self) -> list[dict[str, Any]]:
        fleet = self._gateway.fleet
        return [
            {
                "id": name,
                "object": "model",
                "created": int(self._since_s),
                "owned_by": "kvikk",
                "replicas": [one.id for one in fleet if name in (one.models or ())],
            }
            for name in fleet.models()
        ]

    def _replicas(self, method: bytes, rest: str, request: ClientRequest) -> Reply:
        fleet, patience_s = self._gateway.fleet, self._gateway.options.drain_s
        if not rest:
            if method == b"GET":
                return _json(200, {"replicas": [_shown(one) for one in fleet]})
            if method == b"POST":
                try:
                    origin = parse_origin(_member(request.body, "url"))
                    replica = fleet.add(origin, "admin")
                except RequestError as error:
                    raise RefusalError(400, str(error)) from None
                return _json(201, _shown(replica))
        else:
            name, _, verb = unquote(rest).partition("/")
            found = fleet.find(name)
            if found is None:
                known = ", ".join(one.id for one in fleet) or "none"
                raise RefusalError(404, f"no replica {name[:200]!r}; there is {known}", "not_found")
            if method == b"DELETE" and not verb:
                fleet.leave_later(found, patience_s)
                return _json(202, _shown(found))
            if method == b"POST" and verb in ("drain", "resume"):
                fleet.drain(found, verb == "drain")
                return _json(200, _shown(found))
            if method == b"GET" and not verb:
                return _json(200, _shown(found))
        raise RefusalError(405, f"{method.decode()} is not allowed on {request.head.path[:200]!r}")


def _json(status: int, value: Any) -> Reply:
    return status, _JSON, orjson.dumps(value)


def _member(body: bytes, name: str) -> str:
    """A string of a JSON object. Raises RequestError."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = None
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, str):
        raise RequestError(f'expected a JSON object with a string "{name}"', name)
    return found


def _shown(replica: Replica) -> dict[str, Any]:
    view = replica.view
    return {
        "id": replica.id,
        "url": replica.pool.origin.url,
        "source": replica.source,
        "eligible": view.eligible,
        "healthy": replica.is_healthy,
        "draining": replica.is_draining,
        "breaker": replica.breaker.state,
        "problem": replica.problem,
        "models": sorted(replica.models or ()),
        "running_requests": view.running_requests,
        "running_tokens": view.running_tokens,
        "waiting_tokens": round(view.waiting_tokens),
        "connections": replica.pool.open_connections,
        "requests": replica.requests,
        "errors": dict(replica.errors),
        "restarts": replica.restarts,
    }
