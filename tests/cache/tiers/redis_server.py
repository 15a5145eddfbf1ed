"""A real Redis for tests, on a socket file of its own."""

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis


@dataclass
class RedisServer:
    """``pause`` makes it as slow as can be: it takes connections and says nothing."""

    url: str
    process: subprocess.Popen[bytes]
    client: redis.Redis

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[RedisServer]:
    """Run a server that keeps nothing on disk until the block ends."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    assert program, "the tests need redis-server; on Debian: apt-get install redis-server"
    socket = folder / "redis.sock"
    process = subprocess.Popen(
        [program, "--port", "0", "--unixsocket", str(socket), "--save", "", *options],
        stdout=subprocess.DEVNULL,
    )
    client = redis.Redis(unix_socket_path=str(socket))
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                client.ping()
                break
            except redis.ConnectionError:
                assert process.poll() is None, "redis-server did not start"
                assert time.monotonic() < deadline, "redis-server does not answer"
                time.sleep(0.02)
        yield RedisServer(f"unix://{socket}", process, client)
    finally:
        client.close()
        process.kill()
        process.wait()
