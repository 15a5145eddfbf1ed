"""What every server of kvikk does before it serves: take a port and say where it listens."""

import socket
import sys
from contextlib import suppress

from kvikk.errors import RequestError


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes any free one. Raises RequestError."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        raise RequestError(
            f"cannot listen on {host} port {port}: {reason}; choose another with --host or --port"
        ) from None


def give_up_after(listener: socket.socket, seconds: float) -> None:
    """End connections whose other side has taken nothing for so long, of all that has been sent.

    It may be gone without a word, or not read. The kernel does it, where it can (Linux).
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = max(1, round(1000 * seconds))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def url_of(listener: socket.socket) -> str:
    """Where it is reached, by HTTP."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine reaches it."""
    host: str = listener.getsockname()[0]
    return host.startswith("127.") or host == "::1"


def say(text: str) -> None:
    """A line for whoever started the server, if anybody still reads."""
    with suppress(OSError):  # that they are gone is no reason to stop, nor not to
        print(text, file=sys.stderr, flush=True)
