"""A head that came before on the same connection, and need not be parsed and checked again.

A client's requests on one connection mostly begin with the same bytes but for their length. What
was found out about the first of them, that its framing is sound, whose key it bears, where it may
go, is then true of the others.
"""

import re

from kvikk.router.proxy.request import ClientRequest, RequestHead

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,9})[ \t]*\r\n", re.IGNORECASE)
# What else than its length says how a request is read, or asks for something before its body.
_UNLIKE = (b"transfer-encoding", b"expect", b"upgrade")


class KnownHead:
    """The head of a request that was let in, cut at its length. Made by ``known_head``."""

    __slots__ = ("_after", "_before", "_head")

    def __init__(self, before: bytes, after: bytes, head: RequestHead) -> None:
        self._before = before
        self._after = after
        self._head = head

    def read(self, data: bytes) -> ClientRequest | None:
        """The request that ``data`` is, if it is one, whole and with this head.

        Its id is empty unless the client gave one.
        """
        before, after = self._before, self._after
        if not data.startswith(before):
            return None
        place = len(before)
        end = data.find(b"\r\n", place, place + 12)
        digits = data[place:end]
        if not digits.isdigit() or not data.startswith(after, end):
            return None
        begin = end + len(after)
        if len(data) - begin != int(digits) or begin == len(data):
            return None
        return ClientRequest(self._head, data[begin:])


def known_head(data: bytes, request: ClientRequest) -> KnownHead | None:
    """What is to be remembered of a request that came alone and whole as ``data``, if anything."""
    end = data.find(b"\r\n\r\n") + 4
    head = request.head
    names = head.by_name
    is_plain = request.keeps and not head.is_http10 and head.tenant is not None
    if not is_plain or any(name in names for name in _UNLIKE):
        return None
    if not request.size_bytes or len(data) != end + request.size_bytes:
        return None
    found = _LENGTH.search(data, 0, end)
    if found is None or found[1] != names.get(b"content-length"):
        return None
    return KnownHead(data[: found.start(1)], data[found.end(1) : end], head)
