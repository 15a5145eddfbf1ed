"""The application: routes, keys, errors, around one engine."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

import kvikk
from kvikk.engine.loading import LoadedEngine
from kvikk.server.access_log import AccessLog
from kvikk.server.errors import install_error_handlers
from kvikk.server.feed import Feeds
from kvikk.server.keys import ApiKeys, KeyGate
from kvikk.server.options import ServerOptions
from kvikk.server.routes import (
    adapters,
    bill,
    cache,
    chat_completions,
    completions,
    config,
    embeddings,
    health,
    ledger,
    messages,
    models,
    page,
    pins,
    responses,
    sessions,
    tokens,
)
from kvikk.server.service import Service
from kvikk.server.sleeping import sleep_when_idle
from kvikk.server.tracing.middleware import Tracing


def create_app(loaded: LoadedEngine, options: ServerOptions) -> FastAPI:
    """An ASGI application that serves ``loaded``; ``app.state.service`` is what its routes share.

    Starts the engine's thread, and ends it when the application shuts down.
    """
    service = Service(loaded, options)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        sleeper = None
        if options.sleep_after_s is not None:
            sleeper = asyncio.create_task(sleep_when_idle(service, options.sleep_after_s))
        yield
        if sleeper is not None:
            sleeper.cancel()
        await asyncio.to_thread(service.stop)

    # Pages that draw the description of the API load their scripts from elsewhere: there are none.
    app = FastAPI(
        title="kvikk",
        version=kvikk.__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.service = service
    app.state.feeds = Feeds(service.worker)
    app.add_middleware(KeyGate, keys=ApiKeys(options.api_keys, options.operator_key))
    app.add_middleware(AccessLog, log=service.access_log)
    if service.span_export is not None:
        app.add_middleware(Tracing, export=service.span_export)  # around all others
    install_error_handlers(app)
    apis = (chat_completions, completions, responses, messages, embeddings, models, tokens)
    for routes in (*apis, adapters, bill, cache, sessions, pins, config, ledger, health, page):
        app.include_router(routes.router)
    return app
