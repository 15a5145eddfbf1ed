"""``kvikk route``: listen, and on SIGTERM let running answers finish."""

import asyncio
import gc
import secrets
import signal
import socket
import ssl

import uvloop

from kvikk.errors import RequestError
from kvikk.listening import is_loopback, listen, say, url_of
from kvikk.router.proxy.client import ClientConnection
from kvikk.router.proxy.fleet import Fleet
from kvikk.router.proxy.gateway import Gateway
from kvikk.router.proxy.options import RouterOptions
from kvikk.router.proxy.origin import parse_origin
from kvikk.router.proxy.placement import Placement
from kvikk.router.proxy.sources import follow_file, follow_name, read_file

_BACKLOG = 4096

# Nothing that a request makes is left in a circle, so that there is little to find.
_GC_OBJECTS = 50_000


def run_router(options: RouterOptions, placement: Placement) -> None:
    """Route until SIGTERM or SIGINT. Raises RequestError for options that make no sense.

    The first signal drains: new requests get 503, running answers finish within
    ``options.drain_s``; the second one cuts them off.
    """
    is_told = options.replicas or options.replicas_file or options.replicas_dns
    if not is_told and options.admin_key is None:
        raise RequestError(
            "no replicas: name some with --replica, --replicas-file or --replica-dns, "
            "or give --admin-key and add them while it runs",
            "replica",
        )
    if "" in (*options.api_keys, options.admin_key, options.replica_key):
        raise RequestError("an empty key would let anybody in; leave it out or choose one")
    origins = [parse_origin(url) for url in options.replicas]
    for url in options.replicas_dns:
        parse_origin(url)
    if options.replicas_file is not None:
        read_file(options.replicas_file)
    tls = _tls(options)
    listener = listen(options.host, options.port)

    async def route() -> None:
        fleet = Fleet(placement, tls, options.connect_timeout_s, options.replica_concurrency)
        gateway = Gateway(options, fleet, placement, f"{secrets.token_hex(4)}-")
        for origin in origins:
            fleet.add(origin, "command")
        await _serve(gateway, listener)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(route())


async def _serve(gateway: Gateway, listener: socket.socket) -> None:
    loop, options = asyncio.get_running_loop(), gateway.options
    signals: asyncio.Queue[None] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, None)
    beside = [gateway.run(), gateway.placement.run()]
    if options.replicas_file is not None:
        beside.append(follow_file(gateway.fleet, options.replicas_file, options.drain_s, say))
    beside.extend(
        follow_name(gateway.fleet, url, options.drain_s, say) for url in options.replicas_dns
    )
    tasks = [loop.create_task(coroutine) for coroutine in beside]
    server = await loop.create_server(
        lambda: ClientConnection(gateway), sock=listener, backlog=_BACKLOG
    )
    _look_for_garbage_once()
    say(f"listening on {url_of(listener)}")
    if not options.api_keys and not is_loopback(listener):
        say("anybody who reaches this address may use it: choose --api-key")
    stopped = loop.create_task(signals.get())
    # One of the tasks ends only by a defect; then the router must not go on half alive.
    done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for ended in done:
        ended.result()
    server.close()
    say("draining: new requests are refused, running answers finish")
    again = loop.create_task(signals.get())
    drained = loop.create_task(gateway.drain(options.drain_s))
    await asyncio.wait([again, drained], return_when=asyncio.FIRST_COMPLETED)
    if not drained.done() or not drained.result():
        say("answers still running are cut off")
        await gateway.drain(0)
    for task in (*tasks, again, drained):
        task.cancel()
    await asyncio.gather(*tasks, again, drained, return_exceptions=True)
    await gateway.close()


def _look_for_garbage_once() -> None:
    """Have the collector look at what is new, and never again at what was there then.

    What is remembered of prompts is hundreds of thousands of objects that stay; looking at all of
    them every now and then would be a tenth of the time, and at once.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_OBJECTS)

    def keep(phase: str, info: object) -> None:
        if phase == "stop":
            gc.freeze()

    gc.callbacks.append(keep)


def _tls(options: RouterOptions) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(
            cafile=None if options.ca_file is None else str(options.ca_file)
        )
    except (OSError, ssl.SSLError) as error:
        raise RequestError(f"{options.ca_file} holds no certificates: {error}", "ca_file") from None
