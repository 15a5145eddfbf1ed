"""``kvikk serve``: load, listen, and on SIGTERM finish what runs."""

import asyncio
import gc
import signal
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from kvikk.engine.loading import load_engine
from kvikk.engine.progress_bar import loading_line
from kvikk.listening import give_up_after, is_loopback, listen, say, url_of
from kvikk.server.access_log import NAME as ACCESS_LOG
from kvikk.server.app import create_app
from kvikk.server.kv_events import KvEventPublisher
from kvikk.server.ledger_log import NAME as LEDGER_LOG
from kvikk.server.log_lines import open_log
from kvikk.server.options import ServerOptions
from kvikk.server.plain_http import PlainHttp
from kvikk.server.report import memory_table
from kvikk.server.service import Service
from kvikk.server.tracing.export import check_endpoint

# After the answers are done: connections that do not read what was sent are cut.
_LAST_BYTES_S = 5


def run_server(options: ServerOptions) -> None:
    """Serve until SIGTERM or SIGINT. Raises ModelError if the model or the address is unusable.

    The memory plan and the address go to standard error. The first signal drains: new requests get
    503, running answers finish within ``options.drain_s``; the second one cuts them off.
    """
    # What can be wrong is, before the wait for the model.
    listener = listen(options.host, options.port)
    give_up_after(listener, options.send_timeout_s)
    for file, name in ((options.ledger_log, LEDGER_LOG), (options.access_log, ACCESS_LOG)):
        if file is not None:
            open_log(file, name).close()
    if options.otlp_traces_endpoint is not None:
        check_endpoint(options.otlp_traces_endpoint)
    rules = options.load_rules()
    publisher = (
        None
        if options.kv_events is None
        else KvEventPublisher(options.kv_events, options.kv_events_replay)
    )
    with loading_line(options.engine.model) as progress:
        loaded = load_engine(options.engine, progress)
    say(f"{loaded.model} on the {loaded.backend} backend, ready after {loaded.load_s:.1f} s")
    say(memory_table(loaded.memory, loaded.engine.adapters.by_name.values()))
    if rules is not None:
        say("\n".join(rules.told()))
    # The vocabulary and the kernels are hundreds of thousands of objects that stay: the collector
    # shall not walk over them again and again between two tokens.
    gc.collect()
    gc.freeze()
    if publisher is not None and loaded.engine.books is not None:
        publisher.follow(loaded.engine.books)
    DrainingServer(create_app(loaded, options), options, listener).run()
    if publisher is not None:
        publisher.close()


class DrainingServer(uvicorn.Server):
    """uvicorn, with an end that lets running answers finish while new requests are told 503."""

    def __init__(self, app: FastAPI, options: ServerOptions, listener: socket.socket) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=PlainHttp,
                log_level="warning",
                access_log=False,
                timeout_keep_alive=60,
                timeout_graceful_shutdown=_LAST_BYTES_S,
                server_header=False,
            )
        )
        self._service: Service = app.state.service
        self._options = options
        self._listener = listener
        self._drain: asyncio.Task[None] | None = None

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on the listener until the end."""
        super().run(sockets or [self._listener])

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal has been dealt with."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say where."""
        await super().startup(sockets)
        # What rotates logs moves the files away and says so.
        self._loop.add_signal_handler(signal.SIGHUP, self._service.reopen_logs)
        say(f"listening on {url_of(self._listener)}")
        if not self._options.api_keys and not is_loopback(self._listener):
            say("anybody who reaches this address may use it: choose --api-key")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain on the first signal, cut off what still runs on the next."""
        self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self._drain is None:
            self._drain = self._loop.create_task(self._drain_and_exit())
        else:
            # Ends every request, and so the wait for them.
            self._cut = self._loop.run_in_executor(None, self._service.worker.stop)

    async def _drain_and_exit(self) -> None:
        worker = self._service.worker
        say("draining: new requests are refused, running answers finish")
        try:
            if not await asyncio.to_thread(worker.drain, self._options.drain_s):
                say(f"answers still running after {self._options.drain_s:g} s are cut off")
            await asyncio.to_thread(worker.stop)
        finally:
            self.should_exit = True
