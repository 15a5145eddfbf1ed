"""``kvikk audit --listen``: capture until somebody stops it."""

import asyncio
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from kvikk.audit.capture.proxy import CapturingProxy, parse_upstream
from kvikk.audit.capture.recorder import Recorder
from kvikk.audit.findings import Finding
from kvikk.audit.run import AuditedLog
from kvikk.listening import is_loopback, listen, say, url_of


def capture(
    host: str,
    port: int,
    upstream: str | None,
    record: Path | None,
    on_finding: Callable[[Finding], None],
) -> AuditedLog:
    """Serve until SIGINT or SIGTERM; then what has been found. Raises RequestError."""
    origin = None if upstream is None else parse_upstream(upstream)
    recorder = Recorder(record, on_finding)
    listener = listen(host, port)
    say(f"listening on {url_of(listener)}, in front of {origin or 'the vendor of each API'}")
    if not is_loopback(listener):
        say("anybody who reaches this address may send through it, with a key of their own")
    asyncio.run(_until_stopped(CapturingProxy(recorder, origin), listener))
    recorder.close()
    return recorder.audited(origin or url_of(listener))


async def _until_stopped(proxy: CapturingProxy, listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    serving = loop.create_task(proxy.serve(listener))
    waiting = loop.create_task(stopped.wait())
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    serving.cancel()
    waiting.cancel()
    await asyncio.gather(serving, waiting, return_exceptions=True)
