"""Is a replica well, what does it serve, and is it still the same process?

Checks have connections of their own, and change nothing that requests are counted by.
"""

import asyncio
import re
import time
from collections.abc import Sequence

import orjson

from kvikk.router.proxy.fleet import Fleet
from kvikk.router.proxy.messages import Header
from kvikk.router.proxy.pool import Pool
from kvikk.router.proxy.replica import Replica
from kvikk.router.proxy.response import Response
from kvikk.router.proxy.upstream import UpstreamConnection

_TIMEOUT_S = 5.0
_MODELS_EVERY_S = 15.0
_FAILURES = 2
_STARTED = re.compile(rb"^process_start_time_seconds(?:\{[^}]*\})? ([0-9.e+]+)", re.MULTILINE)


class HealthChecks:
    """A check for each replica, every ``interval_s`` and whenever there is a doubt."""

    def __init__(self, fleet: Fleet, interval_s: float, replica_key: bytes | None) -> None:
        self._fleet = fleet
        self._interval_s = interval_s
        self._key = replica_key
        self._watches: dict[Replica, _Watch] = {}

    def begin(self, replica: Replica) -> None:
        """Watch a replica until it has left."""
        watch = _Watch(self._fleet, replica, self._interval_s, self._key)
        self._watches[replica] = watch
        watch.task.add_done_callback(lambda _: self._watches.pop(replica, None))

    def suspect(self, replica: Replica, why: str) -> None:
        """A connection to it broke or failed: it gets nothing more until a check went well."""
        replica.is_healthy = False
        replica.problem = why
        self._fleet.update(replica)
        watch = self._watches.get(replica)
        if watch is not None:
            watch.doubt.set()

    async def close(self) -> None:
        """Stop all checks."""
        tasks = [watch.task for watch in self._watches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Watch:
    """One replica under observation."""

    def __init__(
        self, fleet: Fleet, replica: Replica, interval_s: float, key: bytes | None
    ) -> None:
        self.doubt = asyncio.Event()
        self._fleet = fleet
        self._replica = replica
        self._interval_s = interval_s
        self._key = key
        self._pool: Pool = replica.pool.another(_TIMEOUT_S)
        self._failures = 0
        self._models_s = 0.0
        self._started: bytes | None = None
        self._is_same = False  # as far as we know, since the last check
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._fleet.has(self._replica):
                in_doubt = self.doubt.is_set()
                self.doubt.clear()
                try:
                    async with asyncio.timeout(_TIMEOUT_S):
                        await self._check(in_doubt)
                except (OSError, ValueError) as error:
                    self._failed(error)
                try:
                    async with asyncio.timeout(self._interval_s):
                        await self.doubt.wait()
                except TimeoutError:
                    pass
        finally:
            self._pool.close()

    async def _check(self, in_doubt: bool) -> None:
        """Raises OSError or ValueError with what is wrong."""
        replica = self._replica
        status, _, is_fresh = await self._get(b"/health")
        if status >= 500 or status == 429:
            raise ValueError(f"/health says {status}")
        if is_fresh:
            await self._recognise(in_doubt)
        now_s = time.monotonic()
        if is_fresh or now_s - self._models_s > _MODELS_EVERY_S or replica.models is None:
            await self._read_models()
            self._models_s = now_s
        self._failures = 0
        if not replica.is_healthy:
            replica.is_healthy, replica.problem = True, ""
            self._fleet.update(replica)

    def _failed(self, error: Exception) -> None:
        replica = self._replica
        self._failures += 1
        if isinstance(error, TimeoutError):
            replica.problem = f"no answer to a check within {_TIMEOUT_S:g} s"
        else:
            replica.problem = str(error)
        refused = isinstance(error, ConnectionRefusedError)
        if refused or self._failures >= _FAILURES:
            replica.is_healthy = False
            self._fleet.update(replica)
        if refused and self._is_same:
            # Nobody listens: the process that held the blocks is no more.
            self._is_same = False
            self._fleet.restarted(replica, "stopped")

    async def _recognise(self, in_doubt: bool) -> None:
        """The connection is a new one: is it the process that we knew?"""
        status, body, _ = await self._get(b"/metrics")
        found = _STARTED.search(body) if status == 200 else None
        started = found[1] if found is not None else None
        known, self._started = self._started, started
        # Where it does not say, a broken answer is taken for a sign.
        is_other = started != known if started is not None and known is not None else in_doubt
        if is_other and self._is_same:
            self._fleet.restarted(self._replica, "restarted")
        if known is not None and started != known:
            self._replica.restarts += 1
        self._is_same = True

    async def _read_models(self) -> None:
        status, body, _ = await self._get(b"/v1/models")
        names: frozenset[str] = frozenset()
        if status == 200:
            try:
                names = frozenset(str(card["id"]) for card in orjson.loads(body)["data"])
            except (orjson.JSONDecodeError, KeyError, TypeError):
                raise ValueError("/v1/models is no list of models") from None
        elif status >= 500:
            raise ValueError(f"/v1/models says {status}")
        self._fleet.set_models(self._replica, names)

    async def _get(self, path: bytes) -> tuple[int, bytes, bool]:
        """Status, body, and whether it took a new connection. Raises OSError."""
        origin = self._pool.origin
        key = b"" if self._key is None else b"authorization: Bearer %b\r\n" % self._key
        head = b"GET %b%b HTTP/1.1\r\nhost: %b\r\n%baccept: */*\r\n\r\n" % (
            origin.prefix,
            path,
            origin.authority,
            key,
        )
        known = self._pool.take()
        if known is not None:
            try:
                return *await _ask(known, head), False
            except ConnectionError:
                pass  # it had been closed meanwhile
        return *await _ask(await self._pool.connect(), head), True


async def _ask(connection: UpstreamConnection, head: bytes) -> tuple[int, bytes]:
    """Status and body. Raises ConnectionError if the connection ends before."""
    answer = _Answer()
    connection.send(answer, head, b"")
    try:
        return await answer.whole
    except asyncio.CancelledError:
        connection.abandon()
        raise


class _Answer:
    """Collects an answer that is small."""

    relay = None

    def __init__(self) -> None:
        self.whole: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._headers: list[Header] = []
        self._pieces: list[bytes] = []

    def on_response(self, response: Response) -> "_Answer":
        self._status = response.status
        return self

    def on_data(self, data: bytes, pieces: Sequence[bytes], is_last: bool) -> None:
        self._pieces += pieces
        if is_last and not self.whole.done():
            self.whole.set_result((self._status, b"".join(self._pieces)))

    def on_lost(self, why: str) -> None:
        if not self.whole.done():
            self.whole.set_exception(ConnectionResetError(why))
