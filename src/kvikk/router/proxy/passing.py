"""An answer on its way to the client: its head is rewritten, its body goes on in its own bytes."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvikk.router.proxy.messages import error_event
from kvikk.router.proxy.request import ClientRequest
from kvikk.router.proxy.response import Response
from kvikk.router.proxy.usage import UsageReader

if TYPE_CHECKING:
    from kvikk.router.proxy.exchange import Exchange

# An answer of at most this size waits until it is whole: no one can use half of it, and should the
# replica die meanwhile, another can be asked.
_HELD_BYTES = 64 << 10
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n")
_CHUNKED_EVENT_ENDS = tuple(end + b"\r\n" for end in _EVENT_ENDS)
_MOST_EVENT_BYTES = 4096


def _size_line(total_bytes: int) -> bytes:
    """What a chunk begins with that has so many bytes with its framing; b"\\n" if there is none."""
    for digits in range(1, 4):
        size = total_bytes - digits - 4
        if size > 0 and len(f"{size:x}") == digits:
            return b"%x\r\n" % size
    return b"\n"


_SIZE_LINES = [_size_line(total_bytes) for total_bytes in range(_MOST_EVENT_BYTES)]


class Passing:
    """Takes an answer's bytes and gives them to the client; tells its exchange how far it is.

    ``sent_bytes`` is what the client was given, ``has_moved`` whether anything has come since
    somebody looked.
    """

    __slots__ = (
        "_exchange",
        "_head",
        "_held",
        "_is_first",
        "_is_joined",
        "_tail",
        "_write",
        "has_moved",
        "response",
        "sent_bytes",
        "usage",
    )

    def __init__(
        self,
        exchange: "Exchange",
        write: Callable[[bytes], None],
        request: ClientRequest,
        response: Response,
        head: bytes,
    ) -> None:
        self._exchange = exchange
        self._write = write
        self._head = head
        length = response.content_length
        is_short = length is not None and length <= _HELD_BYTES
        self._held: list[bytes] | None = [] if is_short else None
        self._is_first = True
        self._is_joined = request.head.is_http10  # which has no chunks
        self._tail = b"\n\n"
        self.has_moved = False
        self.response = response
        self.sent_bytes = 0
        self.usage: UsageReader | None = None
        if response.status == 200 and not response.is_encoded:
            self.usage = UsageReader(response.is_stream)

    def on_data(self, data: bytes, pieces: Sequence[bytes], is_last: bool) -> None:
        """Bytes of the answer, and what is in them: hand them on as they came."""
        self.has_moved = True
        if pieces:
            if self._is_first:
                self._is_first = False
                self._exchange.first_byte()
            if self.usage is not None:
                for piece in pieces:
                    self.usage.feed(piece)
            self._tail = pieces[-1]
        if self._is_joined:
            data = b"".join(pieces)
        if self._head:
            data = self._head + data
            self._head = b""
        if self._held is not None:
            self._held.append(data)
            if not is_last:
                return
            data = self._held[0] if len(self._held) == 1 else b"".join(self._held)
            self._held = None
        if data:
            if not self.sent_bytes:
                self._exchange.is_committed()
            self.sent_bytes += len(data)
            self._write(data)
        if is_last:
            self._exchange.answered()

    @property
    def relay(self) -> "Passing | None":
        """Itself, if what comes next could be an event by itself."""
        has_begun = self.response.is_stream and not self._is_first
        if not has_begun or self._is_joined or not self._tail.endswith(_EVENT_ENDS):
            return None
        return self if self.usage is None or self.usage.is_at_line else None

    def pass_event(self, data: bytes) -> bool:
        """Pass on one whole chunk that is one whole event or more; False if it is anything else.

        Nearly all of a stream is, and this is all that is done for it.
        """
        size = len(data)
        if (
            size < _MOST_EVENT_BYTES
            and data.startswith(_SIZE_LINES[size])
            and data.endswith(_CHUNKED_EVENT_ENDS)
            and b'"usage"' not in data
        ):
            self.has_moved = True
            self.sent_bytes += size
            self._write(data)
            return True
        return False

    def break_off(self, status: int, why: str, at_boundary: bool, path: str) -> bool:
        """Tell a client that has part of the answer that no more will come.

        Within an event or a chunk nothing can be said; the end of the connection tells. Returns
        whether the answer is whole now, as HTTP goes.
        """
        response = self.response
        if not (response.is_stream and at_boundary and self._tail.endswith(_EVENT_ENDS)):
            return False
        code = "draining" if status == 503 else "replica_failed"
        event = error_event(status, why, code, path)
        has_chunks = response.is_chunked and not self._is_joined
        if has_chunks:
            event = b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event)
        self._write(event)
        return has_chunks


class Swallowed:
    """Takes an answer that is not passed on, since another replica is to be asked."""

    __slots__ = ("_exchange",)
    relay = None

    def __init__(self, exchange: "Exchange") -> None:
        self._exchange = exchange

    def on_data(self, data: bytes, pieces: Sequence[bytes], is_last: bool) -> None:
        """Bytes of it."""
        if is_last:
            self._exchange.swallowed()


def response_head(
    response: Response, request: ClientRequest, replica: str, route: str, closes: bool
) -> bytes:
    """The head for the client: the replica's own, and where the answer is from."""
    is_http10 = request.head.is_http10
    own = f"x-kvikk-replica: {replica}\r\nx-kvikk-route: {route}\r\n"
    if not response.has_id:
        own = f"x-request-id: {request.id}\r\n{own}"
    if response.is_chunked and not is_http10:
        own += "transfer-encoding: chunked\r\n"
    if closes:
        own += "connection: close\r\n"
    elif is_http10:
        own += "connection: keep-alive\r\n"
    return b"%b%b\r\n" % (response.passed_on, own.encode())
