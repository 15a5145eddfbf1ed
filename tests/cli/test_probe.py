"""``kvikk probe`` says what it will cost before it sends, prints a table or JSON, and draws."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from kvikk.engine.options import EngineOptions
from kvikk.server.options import ServerOptions
from tests.probe.relays import relay, without_cache_counters
from tests.server.live import LiveServer, start


@pytest.fixture(scope="module")
def live(tiny_model: Path) -> Iterator[LiveServer]:
    engine = EngineOptions(model=str(tiny_model), threads=1, kv_memory_bytes=64 << 20)
    with start(ServerOptions(engine, port=0, rules="openai:gpt-5.6")) as server:
        yield server


def probe(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvikk", "probe", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, input="")


def test_placement_prints_what_it_sent_and_what_it_found(live: LiveServer, tmp_path: Path) -> None:
    handbook, plot = tmp_path / "handbook.txt", tmp_path / "placement.svg"
    handbook.write_text("Rules of the house, one by one. " * 160)
    options = ("--base-url", f"{live.url}/v1", "--handbook", str(handbook), "--plot", str(plot))
    found = probe("placement", *options, "--prices", "openai:gpt-5.6", "--json")
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    assert {name: one["hits"] for name, one in document["arrangements"].items()} == {
        "A": 0,
        "B": 0,
        "C": 7,
        "D": 0,
    }
    assert {one["of"] for one in document["arrangements"].values()} == {7}
    assert document["arrangements"]["C"]["bill_ratio"] == pytest.approx(0.25, abs=0.03)
    assert len(document["exchanges"]) == 4 + 4 * 8
    assert "36 requests" in found.stderr
    assert found.stderr.count(" read, ") == 36
    assert "<svg" in plot.read_text()


def test_routing_prints_a_table(live: LiveServer) -> None:
    found = probe("routing", "--base-url", f"{live.url}/v1", "--words", "1200")
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[1].split() == ["without", "key", "7", "of", "7"]
    assert found.stdout.splitlines()[2].split() == ["with", "key", "7", "of", "7"]
    assert "cost unknown: no prices were named" in found.stderr


def test_hits_that_nobody_tells_of_are_not_zero(live: LiveServer) -> None:
    with relay(live.url, without_cache_counters) as url:
        options = ("routing", "--base-url", f"{url}/v1", "--words", "100")
        table, document = probe(*options), probe(*options, "--json")
    assert (table.returncode, document.returncode) == (1, 1)
    assert table.stdout.count("not told") == 2
    assert "is unknown" in table.stderr.splitlines()[-1]
    assert json.loads(document.stdout)["with_key"]["hits"] is None


def test_what_was_measured_before_ctrl_c_is_told_and_kept(live: LiveServer, tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    asked, gone = count(1), Event()

    def stall(usage: dict[str, Any]) -> dict[str, Any]:
        if next(asked) > 4 + 8 + 1:
            gone.wait(60)
        return usage

    with relay(live.url, stall) as url:
        options = ("--base-url", f"{url}/v1", "--json", "--record", str(record))
        command = [sys.executable, "-m", "kvikk", "probe", "placement", *options]
        with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as process:
            assert process.stderr is not None
            assert any(line.split()[:2] == ["B", "1"] for line in process.stderr)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        gone.set()
    assert process.returncode == 130
    document = json.loads(out)
    assert "Ctrl-C" in document["interrupted"]
    assert list(document["arrangements"]) == ["A"]
    assert len(document["exchanges"]) == 4 + 8 + 1
    assert [json.loads(line)["arm"] for line in record.read_text().splitlines()] == [
        "template",
        "A",
    ]
    assert "run it again to go on" in err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("placement", "--base-url", "http://127.0.0.1:9/v1"), "cannot be reached"),
        (("placement", "--base-url", "http://192.0.2.1/v1", "--model", "m"), "say --yes"),
        (("placement", "--prices", "openai:gpt-0"), "no rules of 'openai:gpt-0'"),
        (("placement", "--handbook", "/no/such/file"), "No such file"),
        (("placement", "--handbook", "/dev/null"), "is empty"),
        (("lifetime", "--waits", "soon"), "'soon' is no time"),
        (("floor", "--model", "m", "--max-cost", "5"), "--max-cost cannot be kept"),
        (
            ("floor", "--model", "m", "--prices", "openai:gpt-4o", "--max-cost", "0.01"),
            "this could cost",
        ),
        (("routing", "--style", "anthropic", "--model", "m"), "no prompt_cache_key"),
        (("placement", "--plot", "/tmp/x.png"), "plots are SVG"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_sent(
    arguments: tuple[str, ...], line: str
) -> None:
    found = probe(*arguments)
    assert found.returncode == 2
    (message,) = found.stderr.splitlines()[-1:]
    assert message.startswith("kvikk: ")
    assert line in message
    assert not found.stdout
