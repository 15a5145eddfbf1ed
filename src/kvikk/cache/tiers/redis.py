"""Blocks in a Redis or Valkey that several engines share.

    kvikk:ORIGIN:KEY-GROUP         a stored block, or its first piece where it is larger than one
    kvikk:ORIGIN:KEY-GROUP:1 …     the other pieces

Equal block keys mean equal bits on every machine, so engines need no word with each other. Room is
the server's affair (``maxmemory`` and its policy), and ``expire_s`` a limit in time since a block's
last use. Requests go in batches of a few MiB over several connections: one moves about 0.3 GB/s,
and a larger batch would keep others waiting at a server that does one thing at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from kvikk.cache.ledger.records import Cause
from kvikk.cache.tiers.health import Health, log_unfit
from kvikk.cache.tiers.stored_block import BlockFormat, fitting
from kvikk.cache.tiers.tier import TierUsage
from kvikk.errors import ModelError

PIECE_BYTES = 8 << 20
CONNECTIONS = 4
CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 2.0
_KEYS_PER_QUESTION = 512
_NO_BLOCK = b""

Result = TypeVar("Result")


class RedisTier:
    """Blocks under ``url``: ``redis://``, ``rediss://``, ``valkey://`` or ``unix://``.

    Raises ModelError for a URL that is none; a server that does not answer is only trouble. What
    ``usage`` counts as used is what this engine put there.
    """

    name = "redis"
    cause = Cause.HIT_REMOTE
    lasting = True

    def __init__(
        self,
        url: str,
        block_format: BlockFormat,
        *,
        expire_s: float | None = None,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        self.place = _place(url)
        self._format = block_format
        self._expire_ms = None if expire_s is None else max(1, int(1000 * expire_s))
        self._prefix = f"kvikk:{block_format.origin.hex()[:16]}:"
        try:
            self._client = redis.Redis.from_url(
                f"redis{url[6:]}" if url.startswith("valkey") else url,
                socket_timeout=answer_timeout_s,
                socket_connect_timeout=CONNECT_TIMEOUT_S,
                max_connections=2 * CONNECTIONS,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
            )
            # It does not connect, but sees whether all options are known.
            self._client.connection_pool.make_connection()
            if not _names_database(url):
                raise ValueError
        except (ValueError, TypeError):  # what it says may hold a part of a password
            raise ModelError(
                "the URL of the Redis tier is not like redis://HOST:PORT/DATABASE (or rediss://, "
                "valkey://, unix://PATH)"
            ) from None
        self._threads = ThreadPoolExecutor(CONNECTIONS, "kvikk-redis")
        self._reading = Health(f"the Redis tier at {self.place}")
        self._writing = Health(f"writing to the Redis tier at {self.place}")
        self._lock = Lock()
        self._stored = self._stored_bytes = self._loaded = self._unfit = 0

    @property
    def readable(self) -> bool:
        """Whether the last attempt worked."""
        return self._reading.trouble is None

    def put(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> int:
        """Send blocks that are not there, if the server takes them."""
        if not self._writing.usable:
            return 0
        missing = [
            (key, block)
            for key, block, known in zip(keys, blocks, self.contains(keys), strict=True)
            if not known
        ]
        if not self._reading.usable:
            return 0
        batches = list(self._batches([key for key, _ in missing]))
        by_key = dict(missing)

        def send(batch: list[bytes]) -> list[bytes]:
            pipeline = self._client.pipeline(transaction=False)
            for key in batch:
                value = self._format.pack(key, by_key[key])
                for name, piece in zip(self._names(key), _pieces(value), strict=True):
                    pipeline.set(name, piece, px=self._expire_ms)
            pipeline.execute()
            return batch

        stored = self._in_threads(send, batches, self._writing)
        keys_stored = [key for batch in stored if batch is not None for key in batch]
        self._stored += len(keys_stored)
        self._stored_bytes += sum(self._format.stored_bytes(key) for key in keys_stored)
        return len(keys_stored)

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Fetch blocks; their time begins anew."""
        if not self._reading.usable:
            return [None] * len(keys)
        batches = list(self._batches(keys))

        def fetch(batch: list[bytes]) -> list[bytes | None]:
            pipeline = self._client.pipeline(transaction=False)
            names = [name for key in batch for name in self._names(key)]
            for name in names:
                if self._expire_ms is None:
                    pipeline.get(name)
                else:
                    pipeline.getex(name, px=self._expire_ms)
            pieces = iter(_values(pipeline.execute(raise_on_error=False)))
            return [_joined([next(pieces) for _ in self._names(key)]) for key in batch]

        values: list[bytes | None] = []
        for batch, answer in zip(
            batches, self._in_threads(fetch, batches, self._reading), strict=True
        ):
            values += [None] * len(batch) if answer is None else answer
        blocks, unfit = fitting(self._format, keys, values)
        log_unfit(self.place, unfit)
        if unfit:
            self.evict(list(unfit))
        with self._lock:
            self._unfit += len(unfit)
            self._loaded += sum(block is not None for block in blocks)
        return blocks

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        """Which are there now; of a block in several pieces the first is asked for."""
        if not self._reading.usable:
            return [False] * len(keys)
        questions = [
            list(keys[start : start + _KEYS_PER_QUESTION])
            for start in range(0, len(keys), _KEYS_PER_QUESTION)
        ]

        def ask(batch: list[bytes]) -> list[bool]:
            pipeline = self._client.pipeline(transaction=False)
            for key in batch:
                pipeline.exists(self._name(key))
            return [bool(answer) for answer in pipeline.execute()]

        answers = self._in_threads(ask, questions, self._reading)
        return [
            known
            for batch, answer in zip(questions, answers, strict=True)
            for known in (answer or [False] * len(batch))
        ]

    def touch(self, keys: Sequence[bytes]) -> None:
        """Let their time begin anew; without one, mark them as used for the server's policy."""

        def mark(batch: list[str]) -> bool:
            pipeline = self._client.pipeline(transaction=False)
            for name in reversed(batch):
                if self._expire_ms is None:
                    pipeline.touch(name)
                else:
                    pipeline.pexpire(name, self._expire_ms)
            pipeline.execute()
            return True

        if self._reading.usable and keys:
            self._in_threads(mark, [[n for key in keys for n in self._names(key)]], self._reading)

    def evict(self, keys: Sequence[bytes] | None = None) -> bool:
        """Delete these, or all of this engine's kind, whoever put them."""

        def delete(names: list[str]) -> bool:
            self._client.unlink(*names)
            return True

        def delete_all(pattern: str) -> bool:
            names = list(self._client.scan_iter(pattern, count=1000))
            for start in range(0, len(names), 1000):
                self._client.unlink(*names[start : start + 1000])
            return True

        if keys is None:
            done = self._in_threads(delete_all, [f"{self._prefix}*"], self._reading)
        else:
            names = [name for key in keys for name in self._names(key)]
            done = self._in_threads(delete, [names] if names else [], self._reading)
        return all(done)

    def usage(self) -> TierUsage:
        """Figures of this moment."""
        return TierUsage(
            name=self.name,
            place=self.place,
            used_blocks=self._stored,
            used_bytes=self._stored_bytes,
            limit_bytes=None,
            trouble=self._reading.trouble or self._writing.trouble,
            stored=self._stored,
            loaded=self._loaded,
            evicted=0,
            unfit=self._unfit,
            failures=self._reading.failures + self._writing.failures,
        )

    def close(self) -> None:
        """Close the connections."""
        self._threads.shutdown(cancel_futures=True)
        self._client.close()

    def _in_threads(
        self, function: Callable[[Any], Result], batches: Sequence[Any], health: Health
    ) -> list[Result | None]:
        """What ``function`` makes of each batch; None, and a note, where the server failed."""

        def guarded(batch: Any) -> Result | None:
            try:
                return function(batch)
            except (redis.RedisError, OSError) as error:
                health.failed(error)
                return None

        if len(batches) <= 1:
            results = [guarded(batch) for batch in batches]
        else:
            results = list(self._threads.map(guarded, batches))
        if results and all(result is not None for result in results):
            health.worked()
        return results

    def _batches(self, keys: Sequence[bytes]) -> Iterator[list[bytes]]:
        """Keys whose values come to about a piece's size together."""
        batch: list[bytes] = []
        num_bytes = 0
        for key in keys:
            batch.append(key)
            num_bytes += self._format.stored_bytes(key)
            if num_bytes >= PIECE_BYTES // 2:
                yield batch
                batch, num_bytes = [], 0
        if batch:
            yield batch

    def _name(self, key: bytes) -> str:
        return f"{self._prefix}{key[:-1].hex()}-{key[-1]}"

    def _names(self, key: bytes) -> list[str]:
        """The names of a block's pieces."""
        first = self._name(key)
        count = -(-self._format.stored_bytes(key) // PIECE_BYTES)
        return [first, *(f"{first}:{piece}" for piece in range(1, count))]


def _pieces(value: bytes) -> Iterator[bytes]:
    for start in range(0, len(value), PIECE_BYTES):
        yield value[start : start + PIECE_BYTES]


def _values(answers: Sequence[Any]) -> Iterator[bytes | None]:
    """What was asked for. What is a list, say, and no value fits nothing; errors are raised."""
    for answer in answers:
        if isinstance(answer, redis.ResponseError) and str(answer).startswith("WRONGTYPE"):
            yield _NO_BLOCK
        elif isinstance(answer, Exception):
            raise answer
        else:
            yield answer


def _joined(pieces: Sequence[bytes | None]) -> bytes | None:
    """The value of these pieces. Where only some are there, what fits nothing, so that it goes."""
    there = [piece for piece in pieces if piece is not None]
    if len(there) == len(pieces):
        return b"".join(there)
    return _NO_BLOCK if there else None


def _names_database(url: str) -> bool:
    """Whether the path of a URL is a database's number, or none; the client would take 0."""
    parts = urlsplit(url)
    return parts.scheme == "unix" or parts.path in ("", "/") or parts.path[1:].isdecimal()


def _place(url: str) -> str:
    """Where a URL leads, without its secrets."""
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        return "an unusable URL"
    return f"{parts.hostname}{port}{parts.path}" if parts.hostname else parts.path
