"""``GET /``: the page, and ``GET /v1/kvikk/live``: what it draws.

The page and its files hold no data and are anybody's; what they show comes from routes that ask for
a key where the server has one.
"""

from collections.abc import AsyncIterator
from importlib.resources import files

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from kvikk.server.errors import ApiError
from kvikk.server.feed import Feed, Feeds
from kvikk.wire.events import encode_event

router = APIRouter()

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# Nothing from elsewhere, nothing inline: what a prompt or an answer holds can never run.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_FILES = {
    file.name: file.read_bytes()
    for file in files("kvikk.server").joinpath("page").iterdir()
    if file.name.rpartition(".")[2] in _TYPES
}


@router.get("/")
async def page() -> Response:
    """The page that shows the cache at work."""
    return _file("index.html")


@router.get("/page/{name}")
async def page_file(name: str) -> Response:
    """A file that the page is made of."""
    if name not in _FILES:
        raise ApiError(404, f"the page has no file {name[:200]!r}")
    return _file(name)


@router.get("/v1/kvikk/live")
async def live(request: Request) -> Response:
    """Server-sent events: blocks, figures and requests, all at first and then what changes."""
    feeds: Feeds = request.app.state.feeds
    feed = feeds.of(request.state.caller.reader)
    if feed.is_full:
        raise ApiError(429, "too many are watching already", headers={"Retry-After": "30"})
    return StreamingResponse(
        _events(feed),
        media_type="text/event-stream; charset=utf-8",
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )


async def _events(feed: Feed) -> AsyncIterator[bytes]:
    async for event in feed.watch():
        yield encode_event(event)


def _file(name: str) -> Response:
    return Response(_FILES[name], media_type=_TYPES[name.rpartition(".")[2]], headers=_HEADERS)
