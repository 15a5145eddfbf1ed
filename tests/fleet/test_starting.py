"""``kvikk fleet up`` where nothing can come of it: what is said, and what is left behind."""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

UP = (sys.executable, "-m", "kvikk", "fleet", "up")
SMALL = "replicas: {cpus: 0.25}\nengine: {threads: 1, kv_memory: 64MiB}\n"


def said(tmp_path: Path, text: str) -> tuple[int, list[str]]:
    """The exit status of a fleet that ends by itself, and its lines."""
    file = tmp_path / "FLEET.yaml"
    file.write_text(text)
    ran = subprocess.run([*UP, str(file)], capture_output=True, text=True, timeout=120)
    return ran.returncode, ran.stderr.splitlines()


def test_a_model_that_there_is_not_is_named_in_one_line(tmp_path: Path) -> None:
    status, lines = said(tmp_path, f"model: {tmp_path}/none.gguf\nport: 0\n{SMALL}")
    assert (status, len(lines)) == (2, 2), lines
    assert lines[1].startswith("kvikk: the fleet did not start: no model '"), lines
    assert "none.gguf" in lines[1]


def test_a_port_that_is_taken_is_named_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, lines = said(tmp_path, f"model: smollm2\nport: {port}\n{SMALL}")
    assert (status, len(lines)) == (2, 1), lines
    assert lines[0].startswith("kvikk: the fleet did not start: ")
    assert str(port) in lines[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_fleet_whose_replicas_never_come_ends_when_told_to(
    tmp_path: Path, number: signal.Signals
) -> None:
    file = tmp_path / "FLEET.yaml"
    file.write_text("model: smollm2\nport: 0\nreplicas: {cpus: 1000}\n")
    process = subprocess.Popen([*UP, str(file)], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("starting")
        time.sleep(1)
        process.send_signal(number)
        assert process.wait(60) == 130
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()


def test_a_cluster_that_there_is_not_is_said_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    down = (sys.executable, "-m", "kvikk", "fleet", "down", "--address", f"127.0.0.1:{port}")
    ran = subprocess.run(down, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    assert ran.stderr.startswith(f"kvikk: no cluster of Ray at '127.0.0.1:{port}': ")
    assert len(ran.stderr.splitlines()) == 1
