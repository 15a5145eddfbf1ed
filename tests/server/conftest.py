from collections.abc import Iterator

import pytest

from kvikk.engine.options import EngineOptions
from kvikk.server.options import ServerOptions
from tests.server.live import LiveServer, start

# One thread: the tests themselves want the other core.
ENGINE = EngineOptions(threads=1, kv_memory_bytes=512 << 20, max_context_tokens=2048)


@pytest.fixture(scope="session")
def server() -> Iterator[LiveServer]:
    """SmolLM2, as a user would have it; every test leaves it idle."""
    with start(ServerOptions(ENGINE, port=0)) as live:
        yield live


@pytest.fixture
def idle_server(server: LiveServer) -> Iterator[LiveServer]:
    """The same, and nothing in it that earlier tests left cached."""
    server.wait_until_idle()
    assert server.post("/v1/kvikk/cache/reset").json()["complete"]
    yield server
    server.wait_until_idle()
