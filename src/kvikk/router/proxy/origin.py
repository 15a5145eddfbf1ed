"""Where a replica is: a URL taken apart once, so that nothing parses it again."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from kvikk.errors import RequestError


@dataclass(frozen=True, slots=True)
class Origin:
    """A replica's address.

    ``authority`` goes into ``Host``; ``prefix`` stands before every path ("" for most). ``host``
    and ``port`` say where to connect, which for a replica found by name is one of its addresses.
    """

    url: str
    host: str
    port: int
    authority: bytes
    is_tls: bool = False
    prefix: bytes = b""
    server_name: str = ""


def parse_origin(url: str, address: str | None = None) -> Origin:
    """Read ``url``; with ``address``, connect there and still call it by its name.

    A path is kept as a prefix, except ``/v1``, which requests bring along. Raises RequestError.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname
    except ValueError:
        host, port = None, None
    if (
        host is None
        or parts.scheme not in ("http", "https")
        or port == 0
        or parts.query
        or parts.fragment
        or parts.username is not None
        or not url.isascii()
        or any(character <= " " for character in url)
    ):
        # What stands before an @ may be a secret.
        raise RequestError(
            f"{url.rpartition('@')[2]!r} is no replica's URL; "
            "expected one like http://10.0.0.7:8000, without a user, a query or a fragment",
            "replica",
        )
    is_tls = parts.scheme == "https"
    default = 443 if is_tls else 80
    path = parts.path.rstrip("/").removesuffix("/v1")
    name = f"[{host}]" if ":" in host else host
    shown = address if address is not None else host
    place = f"[{shown}]" if ":" in shown else shown
    return Origin(
        url=f"{parts.scheme}://{place}:{port or default}{path}",
        host=shown,
        port=port or default,
        authority=(name if port in (None, default) else f"{name}:{port}").encode(),
        is_tls=is_tls,
        prefix=path.encode(),
        server_name=host,
    )
