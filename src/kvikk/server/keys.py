"""API keys: who may ask, and whose cache is whose."""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from kvikk.server.errors import ApiError


@dataclass(frozen=True)
class Caller:
    """Who sent a request: the salt of its tenant, and whether it may act for all tenants."""

    salt: bytes
    is_operator: bool


class ApiKeys:
    """The keys of a server; none means that everybody may ask.

    A key is a tenant. Where there is more than one, each has a salt of its own, so that no tenant
    can tell from hits or timing what another one sent; what touches all of them, such as a reset,
    is then for the operator's key alone. With one tenant or none, everybody is the operator, unless
    there is a key for that.
    """

    def __init__(self, keys: Sequence[str], operator_key: str | None = None) -> None:
        self._tenants = [_digest(key.encode()) for key in keys]
        self._operator = None if operator_key is None else _digest(operator_key.encode())

    def caller(self, authorization: str | None) -> Caller:
        """The bearer of an ``Authorization`` header. Raises ApiError (401) if keys are needed.

        Takes the same time for every wrong key, and looks at all keys for every right one.
        """
        scheme, _, given = (authorization or "").partition(" ")
        digest = _digest(given.strip().encode("utf-8", "replace"))
        is_bearer = scheme.lower() == "bearer"
        is_operator = self._operator is not None and hmac.compare_digest(digest, self._operator)
        matches = [hmac.compare_digest(digest, known) for known in self._tenants]
        if self._tenants and not (is_bearer and (is_operator or any(matches))):
            raise ApiError(
                401,
                "this server needs an API key: send the header 'Authorization: Bearer KEY'"
                if authorization is None
                else "the API key is not one of this server's",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        several = len(self._tenants) > 1
        return Caller(
            salt=digest if several else b"",
            is_operator=is_bearer and is_operator if self._operator is not None else not several,
        )


class KeyGate:
    """Lets nobody to ``/v1`` without a key, before anything else looks at the request."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401, or pass on with ``request.state.caller`` set."""
        if scope["type"] == "http" and scope["path"].startswith("/v1"):
            try:
                caller = self._keys.caller(Headers(scope=scope).get("authorization"))
            except ApiError as error:
                await error.response()(scope, receive, send)
                return
            scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, receive, send)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(b"kvikk tenant\0" + key).digest()
