"""What one tenant can read does not change with what another one sends."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvikk.engine.options import EngineOptions
from kvikk.server.options import ServerOptions
from tests.server.live import LiveServer, start

ADA, BOB, OPERATOR = "key-of-ada", "key-of-bob", "key-of-the-operator"
RULES = "These are the rules of the house, which everybody knows and which never change. " * 4
PATHS = (
    "/v1/kvikk/requests",
    "/v1/kvikk/ledger",
    *(f"/v1/kvikk/ledger?window=86400&by={by}" for by in ("tenant", "key", "route", "model")),
    "/v1/kvikk/cache",
    "/metrics",
    "/v1/models",
)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def ask(live: LiveServer, key: str, prompt: str, **fields: object) -> httpx.Response:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 2, "temperature": 0, **fields}
    return live.post("/v1/completions", body, headers=bearer(key))


def first_event(live: LiveServer, key: str) -> str:
    """What the live feed tells one who begins to watch: everything."""
    with live.http.stream("GET", "/v1/kvikk/live", headers=bearer(key)) as response:
        assert response.status_code == 200
        return next(line for line in response.iter_lines() if line.startswith("data:"))


# What Ada sends, and what Bob sends in front of each: the same, and what would hit or move hers.
ADAS = [f"09:59:58 {RULES}", f"10:00:07 {RULES}", f"10:00:07 {RULES}", f"10:00:07 {RULES[:90]}Bye."]
BOBS = [f"10:00:07 {RULES}", f"09:59:58 {RULES}", f"7 {RULES}", f"10:00:07 {RULES[:90]}Bye."]


def all_that_ada_can_read(live: LiveServer, with_bob: bool) -> list[Any]:
    """Headers, bodies, records, totals: with what differs between any two runs made alike."""
    read: list[tuple[str, httpx.Response]] = []
    ids: list[str] = []
    for adas, bobs in zip(ADAS, BOBS, strict=True):
        for fields in ({}, {"stream": True, "stream_options": {"include_usage": True}}):
            if with_bob:
                assert ask(live, BOB, bobs, **fields).status_code == 200
                assert ask(live, OPERATOR, bobs).status_code == 200
            response = ask(live, ADA, adas, kvikk={"ledger": True}, **fields)
            ids.append(response.headers["x-request-id"])
            read.append(("answer", response))
    paths = (*PATHS, *(f"/v1/kvikk/requests/{request_id}" for request_id in ids))
    read += [(path, live.http.get(path, headers=bearer(ADA))) for path in paths]
    texts = [
        f"{path} {response.status_code} {sorted(response.headers.items())} {response.text}"
        for path, response in read
    ]
    texts.append(f"/v1/kvikk/live {first_event(live, ADA)}")
    result = []
    for said in texts:
        for number, request_id in enumerate(ids):
            said = said.replace(request_id, f"request {number}")
        said = re.sub(r"req-[0-9a-f]{24}", "drawn", said)  # where nothing is asked of the engine
        said = re.sub(r'"(at|created)":[\d.]+', r'"\1":0', said)
        said = re.sub(r'"history":\[.*?\]', "", said)  # a minute may end in either run
        result.append(re.sub(r"\('(date|content-length)', '[^']*'\)", "", said))
    return result


@pytest.fixture(scope="module")
def readings(tiny_model: Path) -> tuple[list[Any], list[Any], dict, dict]:
    """What Ada reads alone and beside Bob; then Bob's newest request and the operator's totals."""
    engine = EngineOptions(str(tiny_model), "reference", kv_memory_bytes=64 << 20, block_size=16)
    options = ServerOptions(engine, port=0, api_keys=(ADA, BOB), operator_key=OPERATOR)
    with start(options) as live:
        alone = all_that_ada_can_read(live, with_bob=False)
    with start(options) as live:
        beside = all_that_ada_can_read(live, with_bob=True)
        bobs = live.http.get("/v1/kvikk/requests", headers=bearer(BOB)).json()["requests"]
        bobs_record = f"/v1/kvikk/requests/{bobs[0]['id']}"
        answers = {key: live.http.get(bobs_record, headers=bearer(key)) for key in (ADA, BOB)}
        totals = live.http.get("/v1/kvikk/ledger?by=tenant", headers=bearer(OPERATOR)).json()
        metrics = live.http.get("/metrics", headers=bearer(OPERATOR))
        assert metrics.status_code == 200
        assert live.http.get("/v1/kvikk/cache", headers=bearer(OPERATOR)).status_code == 200
    return alone, beside, answers, totals


def test_nothing_that_a_tenant_can_read_changes_with_anothers_content(readings) -> None:
    alone, beside, _, _ = readings
    for without, with_bob in zip(alone, beside, strict=True):
        assert without == with_bob
    assert any('"moved"' in said for said in alone)
    assert '"moved"' in alone[-1]  # the live feed has requests in it
    assert any('"hit.device"' in said for said in alone)
    assert not any("isolated" in said for said in beside)


def test_a_request_is_not_there_for_another_tenant(readings) -> None:
    answers = readings[2]
    assert answers[ADA].status_code == 404
    assert answers[BOB].status_code == 200
    assert "isolated" not in answers[BOB].text


def test_the_operator_is_told_what_tenants_have_in_common(readings) -> None:
    totals = readings[3]
    assert totals["by_cause"]["isolated"] > 0
    assert len(totals["groups"]) == 3
    assert "operator" in totals["groups"]
    assert totals["what_if"]
    assert not {"ada", "bob"} & set(re.findall(r"ada|bob", str(totals)))
