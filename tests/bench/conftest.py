from collections.abc import Iterator

import pytest

from kvikk.engine.options import EngineOptions
from kvikk.server.options import ServerOptions
from tests.server.live import LiveServer, start

# One thread: the client wants the other core. No guesses, so that counts can be recounted.
ENGINE = EngineOptions(
    threads=1, kv_memory_bytes=256 << 20, max_context_tokens=1024, speculation=False
)


@pytest.fixture(scope="session")
def server() -> Iterator[LiveServer]:
    with start(ServerOptions(ENGINE, port=0)) as live:
        yield live


@pytest.fixture
def base_url(server: LiveServer) -> str:
    return f"{server.url}/v1"
