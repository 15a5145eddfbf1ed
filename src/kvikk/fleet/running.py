"""``kvikk fleet up`` and ``down``: a fleet's beginning and end on a cluster of Ray."""

import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from kvikk.errors import RequestError
from kvikk.fleet.options import FleetOptions

# Read by Ray and Serve when their processes start.
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "2",
    # A client's header shall not keep an answer going that nobody waits for.
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "kvikk.fleet.proxy:middlewares",
}
_WATCH_S = 2.0
_CONNECT_S = 5.0
_ERROR_TYPE = re.compile(r"^[\w.]+(Error|Exception): ")


def run_fleet(options: FleetOptions, say: Callable[[str], None]) -> None:
    """Start a fleet; on a cluster of its own, stay until SIGINT, SIGTERM or ``kvikk fleet down``.

    Elsewhere it goes on by itself. ``say`` is told what happens. RequestError if there is no such
    cluster, or if the replicas cannot be started.
    """
    is_local = options.ray == "local"
    listening, ended = threading.Event(), threading.Event()

    def end(*_: object) -> None:
        ended.set()
        if not listening.is_set():  # replicas may never come: nothing is waited for
            raise KeyboardInterrupt

    def heed_signals() -> None:
        if is_local:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, end)

    heed_signals()
    ray, serve = _connect(options.ray, start=is_local)
    heed_signals()  # Ray has put its own in place of them
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    from kvikk.fleet.deployments import application

    try:
        server = options.server
        # One of that name is changed, and stays whatever comes of it.
        is_new = is_local or not _runs(serve, options.name)
        try:
            serve.start(
                proxy_location="EveryNode" if options.proxies == "every" else "HeadOnly",
                http_options={"host": server.host, "port": server.port},
            )
            say(f"starting {options.replicas.least} of at most {options.replicas.most} replicas")
            serve.run(application(options), name=options.name)
            listening.set()
            say(f"listening on http://{server.host}:{server.port}")
        except (RayError, RayServeException, RuntimeError) as error:
            why = _last_words(serve, options.name) or _last_line(str(error))
            raise RequestError(f"the fleet did not start: {why}") from None
        finally:
            is_left = not is_local and not listening.is_set() and _runs(serve, options.name)
            if is_left and is_new:  # replicas that never came take their time to be forgotten
                serve.delete(options.name, _blocking=False)
        if is_local:
            # Ray sends the token of this machine's clusters to an address only where it is told to.
            down = f"kvikk fleet down {options.name} --address"
            address = ray.get_runtime_context().gcs_address
            say(f"to end it: Ctrl-C, or RAY_AUTH_MODE=token {down} {address}")
        while is_local and not ended.wait(_WATCH_S):
            if options.name not in (_applications(serve) or ()):
                say("it was told to end")
                break
        if is_local:
            say("ending: answers that have begun may finish")
            serve.shutdown()
    finally:
        ray.shutdown()


def end_fleet(name: str, address: str) -> bool:
    """End the fleet ``name`` of a cluster; False if there is none of that name there.

    RequestError if there is no such cluster.
    """
    ray, serve = _connect(address, start=False)
    try:
        if not _runs(serve, name):
            return False
        serve.delete(name)
        if _applications(serve) == {}:
            serve.shutdown()
        return True
    finally:
        ray.shutdown()


def _runs(serve: Any, name: str) -> bool:
    """Whether there is one of that name that is not being ended."""
    found = (_applications(serve) or {}).get(name)
    return found is not None and found.status != "DELETING"


def _applications(serve: Any) -> Mapping[str, Any] | None:
    """What runs on Serve, by name; None where what would know has ended."""
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    try:
        found: Mapping[str, Any] = serve.status().applications
    except (RayError, RayServeException):
        return None
    return found


def _connect(address: str, *, start: bool) -> tuple[Any, Any]:
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    import ray
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    try:
        if not start:
            _look_for(address)
        ray.init(
            address="local" if start else address,
            include_dashboard=False if start else None,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise RequestError(
            f"no cluster of Ray at {address!r}: {_first_line(error)}; start one with "
            "'ray start --head', or choose ray: local"
        ) from None
    return ray, serve


def _look_for(address: str) -> None:
    """OSError if nobody listens at HOST:PORT, for which Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if host and "/" not in host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()


def _last_words(serve: Any, name: str) -> str:
    """What the replicas of a fleet that did not start died of, "" if they did not say."""
    fleet = (_applications(serve) or {}).get(name)
    if fleet is None:
        return ""
    messages = [one.message for one in fleet.deployments.values() if one.status == "DEPLOY_FAILED"]
    return _last_line(messages[0]) if messages else ""


def _last_line(text: str) -> str:
    """Of a traceback, the line that says what was wrong, without the error's type."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _ERROR_TYPE.sub("", lines[-1])[:300] if lines else ""


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:300]
