"""Around all of an application: what became of each request goes to a collector."""

import time
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvikk.server.tracing.export import SpanExport
from kvikk.server.tracing.record import RequestTrace

# By the path of a request; others are not traced.
_OPERATIONS: Mapping[str, str] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/embeddings": "embeddings",
}
_CONTEXT_HEADERS = ("traceparent", "tracestate")


class Tracing:
    """Hands a trace of each request to ``export``; whoever answers finds it in its state."""

    def __init__(self, app: ASGIApp, export: SpanExport) -> None:
        self._app = app
        self._export = export

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and look at what comes back."""
        operation = _operation(scope)
        if operation is None:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        context = {name: headers[name] for name in _CONTEXT_HEADERS if name in headers}
        trace = RequestTrace(operation, context)
        state = scope.setdefault("state", {})
        state["trace"] = trace
        status, complete = 500, False  # unless there is an answer
        first_chunk_ns: int | None = None

        async def send_and_look(message: Message) -> None:
            nonlocal status, complete, first_chunk_ns
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                complete = not message.get("more_body", False)
                first_chunk_ns = first_chunk_ns or time.time_ns()
            await send(message)

        try:
            await self._app(scope, receive, send_and_look)
        finally:
            trace.ended_ns = time.time_ns()
            caller = state.get("caller")
            trace.attributes |= {
                "http.request.method": scope["method"],
                "url.path": scope["path"],
                "http.response.status_code": status,
                "kvikk.complete": complete,
            }
            if first_chunk_ns is not None and trace.attributes.get("gen_ai.request.stream"):
                waited_s = (first_chunk_ns - trace.began_ns) / 1e9
                trace.attributes["gen_ai.response.time_to_first_chunk"] = waited_s
            if caller is not None:
                trace.attributes |= {"kvikk.tenant": caller.tenant, "kvikk.key": caller.key}
            if status >= 500:
                trace.error = str(status)
            self._export.put(trace)


def _operation(scope: Scope) -> str | None:
    if scope["type"] != "http" or scope["method"] != "POST":
        return None
    return _OPERATIONS.get(scope["path"])
