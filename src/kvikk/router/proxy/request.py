"""One request as it came from a client, and its head as it goes on to a replica."""

import re

from kvikk.router.proxy.keys import Tenant
from kvikk.router.proxy.messages import HOP_BY_HOP, Header, RefusalError, connection_named

# Beside these, what a server has under other paths is for those who run it.
_FORWARDED = ("/v1/",)
_FORWARDED_WHOLE = frozenset(
    ("/tokenize", "/detokenize", "/score", "/rerank", "/pooling", "/classify", "/generate")
)
_NOT_FORWARDED = ("/v1/kvikk/", "/v1/load_lora_adapter", "/v1/unload_lora_adapter")
_METHODS = frozenset((b"GET", b"POST", b"PUT", b"PATCH", b"DELETE"))
# Spellings that a server may take for another path than we do.
_ODD_PATH = re.compile(rb"[%\\;]|//|/\.")
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
# A head for a replica has its own host and length; and its own key, where replicas have one.
_LEFT_OUT = HOP_BY_HOP | {b"host", b"content-length"}
_LEFT_OUT_WITH_KEYS = _LEFT_OUT | {b"authorization", b"x-api-key"}


class RequestHead:
    """What stands before a request's body: who asks for what. Many requests may share one.

    ``id`` is the client's own, empty if it gave none; ``tenant`` is None where the router answers
    itself; ``forwarded`` are the headers for a replica.
    """

    __slots__ = (
        "by_name",
        "forwarded",
        "has_body",
        "headers",
        "id",
        "is_http10",
        "method",
        "path",
        "target",
        "tenant",
    )

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.path = ""
        self.headers: list[Header] = []
        self.by_name: dict[bytes, bytes] = {}
        self.has_body = False
        self.is_http10 = False
        self.id = ""
        self.forwarded = b""
        self.tenant: Tenant | None = None

    def check_head(self, version: str, max_body_bytes: int, via: bytes) -> None:
        """Raises RefusalError for what cannot be passed on safely. Sets the path."""
        if version not in ("1.1", "1.0"):
            raise RefusalError(505, "expected HTTP/1.1")
        self.is_http10 = version == "1.0"
        names = self.by_name
        coding = names.get(b"transfer-encoding")
        if coding is not None and (coding.lower() != b"chunked" or self.is_http10):
            raise RefusalError(
                400, "Transfer-Encoding: expected chunked, in HTTP/1.1, and nothing else"
            )
        if b"host" not in names and not self.is_http10:
            raise RefusalError(400, "the header host is missing")
        if len(names) != len(self.headers):
            lowers = [lower for lower, _, _ in self.headers]
            for single in (b"host", b"authorization", b"x-api-key", b"content-type"):
                if lowers.count(single) > 1:
                    raise RefusalError(400, f"the header {single.decode()} is there twice")
        length = int(names.get(b"content-length", b"0"))
        self.has_body = length > 0 or coding is not None
        if length > max_body_bytes:
            raise too_large(max_body_bytes)
        # The last of several is no more than the last.
        if b"via" in names and any(
            via in value for lower, _, value in self.headers if lower == b"via"
        ):
            raise RefusalError(
                508,
                "the request has been here before: this router is its own replica, perhaps by way "
                "of another router",
                "loop",
            )
        if not self.target.startswith(b"/"):
            raise RefusalError(400, "expected a path as the request's target")
        self.path = self.target.partition(b"?")[0].decode("ascii", "replace")
        given = names.get(b"x-request-id")
        if given is not None and _REQUEST_ID.fullmatch(given):
            self.id = given.decode()

    def check_forwarded(self, extra: tuple[str, ...]) -> None:
        """Raises RefusalError unless this is something to be asked of a replica."""
        path = self.path
        known = path in _FORWARDED_WHOLE or path.startswith((*_FORWARDED, *extra))
        if not known or path.startswith(_NOT_FORWARDED):
            raise RefusalError(404, f"no such route {path[:200]!r}", "not_found")
        if _ODD_PATH.search(self.target.partition(b"?")[0]):
            raise RefusalError(400, f"the path {path[:200]!r} could be read in two ways")
        if self.method not in _METHODS:
            raise RefusalError(405, f"{self.method.decode()} is not allowed on {path[:200]!r}")

    def set_forwarded(self, replica_key: bytes | None) -> None:
        """Settle which headers go on to a replica."""
        left_out = _LEFT_OUT if replica_key is None else _LEFT_OUT_WITH_KEYS
        if b"connection" in self.by_name:
            left_out |= connection_named(self.headers)
        lines = [
            b"\r\n%b: %b" % (name, value)
            for lower, name, value in self.headers
            if lower not in left_out
        ]
        if replica_key is not None:
            lines.append(b"\r\nauthorization: Bearer " + replica_key)
        self.forwarded = b"".join(lines)


class ClientRequest:
    """A request while it comes in, and then."""

    __slots__ = (
        "arrived_s",
        "body",
        "head",
        "held_bytes",
        "id",
        "keeps",
        "pieces",
        "size_bytes",
    )

    def __init__(self, head: RequestHead, body: bytes = b"") -> None:
        self.head = head
        self.body = body
        self.size_bytes = len(body)
        self.pieces: bytearray | None = None
        self.held_bytes = 0
        self.id = head.id
        self.keeps = True
        self.arrived_s = 0.0

    def upstream_head(self, authority: bytes, prefix: bytes, via: bytes) -> bytes:
        """The head for a replica: all headers but those between two parties, and ours."""
        head, own = self.head, b""
        if self.body or head.method != b"GET":
            own = b"\r\ncontent-length: %d" % len(self.body)
        if b"x-request-id" not in head.by_name:
            own = b"\r\nx-request-id: %b%b" % (self.id.encode(), own)
        return b"%b %b%b HTTP/1.1\r\nhost: %b%b%b\r\nvia: %b\r\n\r\n" % (
            head.method,
            prefix,
            head.target,
            authority,
            head.forwarded,
            own,
            via,
        )


def too_large(max_body_bytes: int) -> RefusalError:
    """A body over the limit."""
    return RefusalError(413, f"the body is larger than {max_body_bytes:,} bytes", "body_too_large")
