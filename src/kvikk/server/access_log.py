"""The access log: a line of JSON for every request, with no word of what was said."""

import secrets
import time
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvikk.server.errors import speaks_anthropic
from kvikk.server.log_lines import LineLog

NAME = "the access log"


class AccessLog:
    """Gives every request an id and its answer the id in its head, and writes a line for it.

    ``log`` None writes none. The id is in the request's state as ``request_id``, and who knows a
    better one puts it there before the answer begins. What else is known of a request others leave
    beside it: the ``caller``, and ``counts``, tokens by name.
    """

    def __init__(self, app: ASGIApp, log: LineLog | None) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and look at what comes back."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        seen = _Seen(scope)

        async def send_and_look(message: Message) -> None:
            seen.look(message)
            await send(message)

        try:
            await self._app(scope, receive, send_and_look)
        finally:
            if self._log is not None:
                line = seen.line()
                self._log.put(lambda: line)


class _Seen:
    """What one request came to."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._state: dict[str, Any] = scope.setdefault("state", {})
        self._began_s = time.monotonic()
        self._first_byte_s: float | None = None
        self._status: int | None = None
        self._state["request_id"] = f"req-{secrets.token_hex(12)}"
        self._num_bytes = 0
        self._whole = False

    def look(self, message: Message) -> None:
        """Take note of a part of the answer; its head gets an id if it has none."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = MutableHeaders(scope=message)
            headers.setdefault("x-request-id", self._state["request_id"])
            if speaks_anthropic(self._scope):
                headers.setdefault("request-id", self._state["request_id"])
        elif message["type"] == "http.response.body":
            self._num_bytes += len(message.get("body", b""))
            self._whole = not message.get("more_body", False)
            if self._first_byte_s is None:
                self._first_byte_s = time.monotonic() - self._began_s

    def line(self) -> dict[str, Any]:
        """The line. ``status`` is null where the client went before there was one."""
        caller, client = self._state.get("caller"), self._scope.get("client")
        return {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "id": self._state["request_id"],
            "client": None if client is None else client[0],
            "tenant": None if caller is None else caller.tenant,
            "key": None if caller is None else caller.key,
            "method": self._scope["method"],
            "path": self._scope["path"],
            "status": self._status,
            "complete": self._whole,
            "bytes": self._num_bytes,
            "first_byte_s": None if self._first_byte_s is None else round(self._first_byte_s, 6),
            "seconds": round(time.monotonic() - self._began_s, 6),
            **self._state.get("counts", {}),
        }
