"""The connections to one replica: those in wait, and the way to a new one."""

import asyncio
import ssl

from kvikk.router.proxy.origin import Origin
from kvikk.router.proxy.upstream import UpstreamConnection

_MAX_IDLE = 512


class Pool:
    """Connections to one origin. The one used last goes out first, so that few are kept."""

    def __init__(
        self, origin: Origin, tls: ssl.SSLContext | None, connect_timeout_s: float
    ) -> None:
        self.origin = origin
        self._tls = tls if origin.is_tls else None
        self._connect_timeout_s = connect_timeout_s
        self._idle: list[UpstreamConnection] = []
        self._open: set[UpstreamConnection] = set()
        self._is_closed = False

    def another(self, connect_timeout_s: float) -> "Pool":
        """A pool of its own for the same origin."""
        return Pool(self.origin, self._tls, connect_timeout_s)

    def take(self) -> UpstreamConnection | None:
        """A connection in wait, if there is one."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    async def connect(self) -> UpstreamConnection:
        """A new connection. Raises OSError (also TimeoutError, ssl.SSLError)."""
        origin = self.origin
        async with asyncio.timeout(self._connect_timeout_s):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: UpstreamConnection(self),
                origin.host,
                origin.port,
                ssl=self._tls,
                server_hostname=origin.server_name if self._tls else None,
            )
        self._open.add(connection)
        return connection

    def freed(self, connection: UpstreamConnection) -> None:
        """A connection's answer is whole."""
        if self._is_closed or len(self._idle) >= _MAX_IDLE:
            self._open.discard(connection)
            connection.transport.close()
        else:
            self._idle.append(connection)

    def closed(self, connection: UpstreamConnection) -> None:
        """A connection is no more."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    @property
    def open_connections(self) -> int:
        """Connections, in use or in wait."""
        return len(self._open)

    def close(self) -> None:
        """Close what waits; what is in use is closed when it is free."""
        self._is_closed = True
        for connection in self._idle:
            connection.transport.close()
        self._idle.clear()
