"""Ports for servers that have to be told theirs, or that come back to it."""

import random
import socket

_given: set[int] = set()


def free_port() -> int:
    """Nobody listens at it, and this process was never given it before.

    It is below those that a kernel gives out by itself: else any connection of this machine could
    have it before a server does, or between two lives of one.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 32_768)
        if port in _given:
            continue
        _given.add(port)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
