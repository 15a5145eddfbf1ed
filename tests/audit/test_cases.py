"""Public reports of missed caches: the class of each and its place, and no false alarm."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.audit.cases import CASES, audit, is_inside, load, log_lines

FILES = sorted(CASES.glob("*.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_report_is_explained_as_it_was(file: Path) -> None:
    case = load(file)
    expected = case["expected_diagnosis"]
    results, findings = audit(log_lines(case))
    for result in results:
        assert sum(result.account.parts.values()) == result.account.input_tokens
    if expected["cause_class"] == "none":
        assert findings == []
        return
    request = expected["between_requests"][1] or 0
    told = [(one.cause, one.location) for one in findings if one.request == request]
    assert any(
        cause == expected["cause_class"] and is_inside(location, expected["location"])
        for cause, location in told
    ), told


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_class_of_a_report_misses_the_most_tokens(file: Path) -> None:
    case = load(file)
    expected = case["expected_diagnosis"]
    _, findings = audit(log_lines(case))
    request = expected["between_requests"][1] or 0
    told = [one for one in findings if one.request == request]
    if case["kind"] == "miss":
        assert max(told, key=lambda one: one.missed_tokens).cause == expected["cause_class"]


def test_there_are_cases_to_try() -> None:
    assert len(FILES) == 34


def test_a_shell_is_told_the_same(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    lines = log_lines(load(CASES / "05-mcp-tools-reordered.json"))
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [sys.executable, "-m", "kvikk", "audit", str(log), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    assert document["requests"] == 2
    [finding] = document["findings"]
    assert (finding["request"], finding["cause"], finding["location"]) == (
        1,
        "tools.order",
        "$.tools[2]",
    )
    assert document["totals"]["tools.order"]["missed_tokens"] == finding["missed_tokens"] > 2000
