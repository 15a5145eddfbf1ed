"""``kvikk fleet up`` where nothing can come of it: what is said, and what is left behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

FLEET = (sys.executable, "-m", "kvikk", "fleet")
SMALL = "replicas: {cpus: 0.25}\nengine: {threads: 1, kv_memory: 64MiB}\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster that goes on by itself."""
    from ray.cluster_utils import Cluster

    with patch.dict(os.environ, {"RAY_USAGE_STATS_ENABLED": "0"}):
        head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 << 20}
        running = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield running.address
    finally:
        running.shutdown()


def up(tmp_path: Path, text: str) -> tuple[str, ...]:
    file = tmp_path / "FLEET.yaml"
    file.write_text(text)
    return (*FLEET, "up", str(file))


def said(command: tuple[str, ...]) -> tuple[int, list[str]]:
    """The exit status of a command that ends by itself, and its lines."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=250)
    return ran.returncode, ran.stderr.splitlines()


def stop_while_it_waits(command: tuple[str, ...], number: signal.Signals) -> None:
    """A fleet whose replicas never come ends at once, and has nothing to say."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("starting")
        time.sleep(1)
        process.send_signal(number)
        assert process.wait(120) == 130
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()


def has_fleet(cluster: str) -> bool:
    """Whether a fleet was there, which is ended."""
    status, lines = said((*FLEET, "down", "--address", cluster))
    assert status == 0 or lines == ["kvikk: no fleet 'kvikk' runs there"], lines
    return status == 0


def test_a_model_that_there_is_not_is_named_in_one_line_and_nothing_stays(
    tmp_path: Path, cluster: str
) -> None:
    text = f"ray: {cluster}\nmodel: {tmp_path}/none.gguf\nport: 0\n{SMALL}"
    status, lines = said(up(tmp_path, text))
    assert (status, len(lines)) == (2, 2), lines
    assert lines[1].startswith("kvikk: the fleet did not start: no model '"), lines
    assert "none.gguf" in lines[1]
    assert not has_fleet(cluster)


def test_a_port_that_is_taken_is_named_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, lines = said(up(tmp_path, f"model: smollm2\nport: {port}\n{SMALL}"))
    assert (status, len(lines)) == (2, 1), lines
    assert lines[0].startswith("kvikk: the fleet did not start: ")
    assert str(port) in lines[0]


NEVER = "model: smollm2\nport: 0\nreplicas: {cpus: 1000}\n"


def test_a_fleet_whose_replicas_never_come_ends_by_ctrl_c_and_leaves_the_cluster_as_it_was(
    tmp_path: Path, cluster: str
) -> None:
    stop_while_it_waits(up(tmp_path, f"ray: {cluster}\n{NEVER}"), signal.SIGINT)
    assert not has_fleet(cluster)


def test_a_fleet_on_a_cluster_of_its_own_ends_by_sigterm_at_any_time(tmp_path: Path) -> None:
    stop_while_it_waits(up(tmp_path, NEVER), signal.SIGTERM)


def test_a_cluster_that_there_is_not_is_said_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    status, lines = said((*FLEET, "down", "--address", f"127.0.0.1:{port}"))
    assert status == 2
    assert lines[0].startswith(f"kvikk: no cluster of Ray at '127.0.0.1:{port}': ")
    assert len(lines) == 1
