"""API keys: who may ask, and how much at once.

Keys are kept and compared as keyed digests. What a caller can time is then a comparison of values
that it can neither choose nor know, and no key lies in memory once the start is over.
"""

import hashlib
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvikk.router.proxy.messages import RefusalError

_NO_KEY = "this router needs an API key: send the header 'Authorization: Bearer KEY'"
_WRONG_KEY = "the API key is not one of this router's"


@dataclass(frozen=True)
class TenantLimits:
    """What one tenant may have: requests at once, and a second with ``burst``; 0 is no limit."""

    concurrency: int = 0
    requests_per_s: float = 0.0
    burst: int = 0


class Tenant:
    """A caller, by its key: its requests in progress and how many more it may send now."""

    __slots__ = ("_allowance", "_limits", "_seen_s", "name", "running", "salt")

    def __init__(self, name: str, salt: bytes, limits: TenantLimits) -> None:
        self.name = name
        self.salt = salt
        self.running = 0
        self._limits = limits
        self._allowance = self._most
        self._seen_s = time.monotonic()

    def enter(self) -> None:
        """Count one request more. Raises RefusalError (429) over a limit, counting nothing."""
        limits = self._limits
        if limits.concurrency and self.running >= limits.concurrency:
            raise _too_many(f"{limits.concurrency} requests of this key are in progress", 1.0)
        if limits.requests_per_s:
            now_s = time.monotonic()
            grown = self._allowance + (now_s - self._seen_s) * limits.requests_per_s
            self._allowance, self._seen_s = min(grown, self._most), now_s
            if self._allowance < 1:
                wait_s = (1 - self._allowance) / limits.requests_per_s
                raise _too_many(f"over {limits.requests_per_s:g} requests a second", wait_s)
            self._allowance -= 1
        self.running += 1

    def leave(self) -> None:
        """One of its requests has ended."""
        self.running -= 1

    @property
    def _most(self) -> float:
        return float(max(self._limits.burst, self._limits.requests_per_s, 1))


class Keys:
    """The keys of a router; none means that everybody may ask, as one tenant."""

    def __init__(self, keys: Iterable[str], limits: TenantLimits, admin_key: str | None) -> None:
        self._secret = secrets.token_bytes(32)
        self._tenants = {}
        for key in keys:
            # A name tells keys apart in metrics and logs, and opens nothing.
            public = hashlib.sha256(b"kvikk tenant\0" + key.encode()).digest()
            name = f"key-{hashlib.sha256(b'kvikk key name' + public).hexdigest()[:8]}"
            self._tenants[self._digest(key.encode())] = Tenant(name, public, limits)
        self._everybody = None if self._tenants else Tenant("default", b"", limits)
        if len(self._tenants) == 1:
            for only in self._tenants.values():
                only.salt = b""
        self._admin = None if admin_key is None else self._digest(admin_key.encode())

    def tenant(self, headers: Mapping[bytes, bytes]) -> Tenant:
        """Who sent a request with these headers. Raises RefusalError (401)."""
        if self._everybody is not None:
            return self._everybody
        given = _given(headers)
        tenant = None if given is None else self._tenants.get(self._digest(given))
        if tenant is None:
            raise _unknown(_NO_KEY if given is None else _WRONG_KEY)
        return tenant

    def require_admin(self, headers: Mapping[bytes, bytes]) -> None:
        """Raises RefusalError (401, 403) unless the request bears the admin's key."""
        if self._admin is None:
            raise RefusalError(
                403, "admin calls are off; start the router with --admin-key", "admin_off"
            )
        given = _given(headers)
        if given is None or self._digest(given) != self._admin:
            raise _unknown("this takes the admin's key: send 'Authorization: Bearer ADMIN_KEY'")

    def tenant_or_admin(self, headers: Mapping[bytes, bytes]) -> None:
        """Raises RefusalError (401) unless the request bears a tenant's key or the admin's."""
        given = _given(headers)
        if self._admin is None or given is None or self._digest(given) != self._admin:
            self.tenant(headers)

    @property
    def tenants(self) -> list[Tenant]:
        """All tenants."""
        return [self._everybody] if self._everybody is not None else [*self._tenants.values()]

    @property
    def are_several(self) -> bool:
        """Whether there are tenants to be kept apart."""
        return len(self._tenants) > 1

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._secret, digest_size=32).digest()


def _given(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The key that a request bears, as OpenAI's or as Anthropic's clients send it."""
    authorization = headers.get(b"authorization")
    if authorization is None:
        return headers.get(b"x-api-key")
    scheme, _, key = authorization.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _unknown(message: str) -> RefusalError:
    return RefusalError(401, message, "invalid_api_key", [(b"www-authenticate", b"Bearer")])


def _too_many(message: str, wait_s: float) -> RefusalError:
    retry_after = b"%d" % max(1, -int(-wait_s // 1))
    return RefusalError(429, message, "rate_limit_exceeded", [(b"retry-after", retry_after)])
