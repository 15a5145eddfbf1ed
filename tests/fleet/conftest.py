"""One fleet for all tests that need one: three nodes of Ray on this machine, two or three engines.

It is started and ended here, and nothing of it stays.
"""

import os
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from tests.fleet.live import LiveFleet, start
from tests.ports import free_port

# Read by Ray's processes as they start; see ``kvikk.fleet.running`` for what users get.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "kvikk.fleet.proxy:middlewares",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
    "RAY_DEDUP_LOGS": "0",
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFleet]:
    file = tmp_path_factory.mktemp("fleet") / "FLEET.yaml"
    with patch.dict(os.environ, _ENVIRONMENT), start(free_port(), file) as live:
        yield live
