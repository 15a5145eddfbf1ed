"""API keys: who may ask, and whose cache is whose."""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from kvikk.server.errors import ApiError

_TOKENIZER_PATHS = ("/tokenize", "/detokenize", "/tokenizer_info")


@dataclass(frozen=True)
class Caller:
    """Who sent a request: its tenant, by salt and by name, and whether it may act for all.

    ``key`` names the API key. Names are digests: they tell keys apart and open nothing.
    """

    salt: bytes
    is_operator: bool
    tenant: str = "default"
    key: str = "none"

    @property
    def reader(self) -> str | None:
        """The tenant whose requests this caller may see; None for those of all."""
        return None if self.is_operator else self.tenant


class ApiKeys:
    """The keys of a server; none means that everybody may ask.

    A key is a tenant, and so is the operator's. Where there is more than one, each has a salt of
    its own, so that no tenant can tell from hits or timing what another one sent; what touches or
    shows all of them, such as a reset or the metrics, is then for the operator's key alone. With
    one tenant or none, everybody is the operator, unless there is a key for that.
    """

    def __init__(self, keys: Sequence[str], operator_key: str | None = None) -> None:
        self._tenants = [_digest(key.encode()) for key in keys]
        self._operator = None if operator_key is None else _digest(operator_key.encode())

    def caller(self, headers: Headers) -> Caller:
        """Who sent ``headers``, with a key in ``Authorization`` or, as Anthropic's clients do, in
        ``X-Api-Key``. Raises ApiError (401) if keys are needed.

        Takes the same time for every wrong key, and looks at all keys for every right one.
        """
        authorization, bare = headers.get("authorization"), headers.get("x-api-key")
        scheme, _, given = (authorization or "").partition(" ")
        is_bearer = scheme.lower() == "bearer"
        if not is_bearer and bare is not None:
            is_bearer, given = True, bare
        digest = _digest(given.strip().encode("utf-8", "replace"))
        is_operator = self._operator is not None and hmac.compare_digest(digest, self._operator)
        matches = [hmac.compare_digest(digest, known) for known in self._tenants]
        if self._tenants and not (is_bearer and (is_operator or any(matches))):
            raise ApiError(
                401,
                "this server needs an API key: send the header 'Authorization: Bearer KEY'"
                if authorization is None and bare is None
                else "the API key is not one of this server's",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        several = len(self._tenants) > 1
        is_operator = is_bearer and is_operator
        parted = several or is_operator
        key = f"key-{hashlib.sha256(b'kvikk key name' + digest).hexdigest()[:8]}"
        return Caller(
            salt=digest if parted else b"",
            is_operator=is_operator or self.everybody_operates,
            tenant="operator" if is_operator else key if several else "default",
            key="operator" if is_operator else key if self._tenants else "none",
        )

    @property
    def everybody_operates(self) -> bool:
        """Whether there is nobody to be kept apart from."""
        return self._operator is None and len(self._tenants) < 2


class KeyGate:
    """Lets nobody to ``/v1`` without a key, before anything else looks at the request.

    Nor to the metrics, where they would tell of others.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401, or pass on with ``request.state.caller`` set."""
        if scope["type"] == "http" and self._is_guarded(scope["path"]):
            try:
                caller = self._keys.caller(Headers(scope=scope))
            except ApiError as error:
                await error.response(scope)(scope, receive, send)
                return
            scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, receive, send)

    def _is_guarded(self, path: str) -> bool:
        if path == "/metrics":
            return not self._keys.everybody_operates
        return path.startswith("/v1") or path in _TOKENIZER_PATHS


def require_operator(request: Request, what: str) -> None:
    """Raise ApiError (403) unless the caller may see or do ``what`` for all tenants."""
    if not request.state.caller.is_operator:
        raise ApiError(
            403, f"{what} concerns all tenants; send the operator's key", code="forbidden"
        )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(b"kvikk tenant\0" + key).digest()
