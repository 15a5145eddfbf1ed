"""What stands in front of Serve's own HTTP proxy, where ``kvikk fleet up`` has started it."""

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

# With it the proxy does not look whether the client is still there, and the work goes on.
_STRIPPED = b"x-request-disconnect-disabled"


class StripHeader:
    """Takes a header off every request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on without it."""
        if scope["type"] == "http":
            headers = [(name, value) for name, value in scope["headers"] if name != _STRIPPED]
            scope = dict(scope) | {"headers": headers}
        await self._app(scope, receive, send)


def middlewares() -> list[Middleware]:
    """For Serve's setting of that name."""
    return [Middleware(StripHeader)]
