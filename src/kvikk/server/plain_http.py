"""uvicorn's protocol for clients that offer HTTP/2 with each request, as Java's does unasked.

    POST /v1/chat/completions HTTP/1.1
    Connection: Upgrade, HTTP2-Settings
    Upgrade: h2c

A server may pass over the offer, but to the parser beneath uvicorn everything behind such a head is
of another protocol, the body too. So the offer's name is written over before it is parsed; within
a body in JSON, whose strings hold no line ends, it cannot stand.
"""

import re

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_OFFER = re.compile(rb"(?<=\r\n)upgrade(?=:[ \t]*h2c)", re.IGNORECASE)
_PASSED_OVER = b"ignored"  # of the same length


class PlainHttp(HttpToolsProtocol):
    """HTTP/1.1, whatever else is offered."""

    def data_received(self, data: bytes) -> None:
        """Take in bytes of the client's."""
        super().data_received(_OFFER.sub(_PASSED_OVER, data) if b"h2c" in data else data)
