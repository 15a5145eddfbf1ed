"""API keys: who may ask, and whose cache is whose."""

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from kvikk.server.errors import ApiError


class ApiKeys:
    """The keys of a server; none means that everybody may ask.

    A key is a tenant. Where there is more than one, each has a salt of its own, so that no tenant
    can tell from hits or timing what another one sent.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def tenant_salt(self, authorization: str | None) -> bytes:
        """The salt of the key in an ``Authorization`` header. Raises ApiError (401) without one.

        Takes the same time for every wrong key, and looks at all keys for every right one.
        """
        if not self._digests:
            return b""
        scheme, _, given = (authorization or "").partition(" ")
        digest = _digest(given.strip().encode("utf-8", "replace"))
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if scheme.lower() != "bearer" or not any(matches):
            raise ApiError(
                401,
                "this server needs an API key: send the header 'Authorization: Bearer KEY'"
                if authorization is None
                else "the API key is not one of this server's",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return digest if len(self._digests) > 1 else b""


class KeyGate:
    """Lets nobody to ``/v1`` without a key, before anything else looks at the request."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401, or pass on with ``request.state.tenant_salt`` set."""
        if scope["type"] == "http" and scope["path"].startswith("/v1"):
            try:
                salt = self._keys.tenant_salt(Headers(scope=scope).get("authorization"))
            except ApiError as error:
                await error.response()(scope, receive, send)
                return
            scope.setdefault("state", {})["tenant_salt"] = salt
        await self._app(scope, receive, send)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(b"kvikk tenant\0" + key).digest()
