"""Who may ask, and how much at once; what a router keeps to itself."""

import concurrent.futures
import json
from pathlib import Path

import pytest

from tests.router.live import ADMIN_KEY, LiveRouter, StubReplica, router, stubs, wait_for

ONE, OTHER, REPLICAS_KEY = "key-of-one-tenant", "key-of-another-tenant", "key-for-replicas"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("router") / "access.jsonl"


@pytest.fixture(scope="module")
def replicas():
    with stubs(2) as started:
        yield started


@pytest.fixture(scope="module")
def guarded(replicas, log):
    arguments = [
        *("--api-key", ONE, "--api-key", OTHER, "--replica-key", REPLICAS_KEY),
        *("--tenant-concurrency", "3", "--replica-concurrency", "2", "--max-queue", "1"),
        *("--access-log", str(log)),
    ]
    with router(replicas, *arguments) as live:
        yield live


def test_without_a_key_nothing_is_answered_but_health(guarded: LiveRouter, replicas):
    for key in (
        {},
        bearer("wrong"),
        {"authorization": "Bearer"},
        {"authorization": f"Basic {ONE}"},
        bearer("ø"),
    ):
        headers = {name: value.encode() for name, value in key.items()}
        response = guarded.post(headers=headers)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert guarded.http.get("/v1/models", headers=headers).status_code == 401
        assert guarded.http.get("/metrics", headers=headers).status_code == 401
    assert guarded.http.get("/healthz").status_code == 200
    assert guarded.post(headers=bearer(ONE)).status_code == 200
    assert guarded.post(headers={"x-api-key": OTHER}).status_code == 200


def test_a_callers_key_does_not_reach_replicas_that_have_their_own(guarded, replicas):
    guarded.post(headers=bearer(ONE))
    guarded.post(headers={"x-api-key": OTHER})
    sent = [dict(one["headers"]) for replica in replicas for one in replica.state()["seen"]]
    assert {one["authorization"] for one in sent} == {f"Bearer {REPLICAS_KEY}"}
    assert ONE not in json.dumps(sent)
    assert OTHER not in json.dumps(sent)


def test_a_tenants_key_changes_no_fleet_and_an_admins_key_asks_nothing(guarded: LiveRouter):
    for method, path in (("GET", ""), ("POST", ""), ("DELETE", "/x"), ("POST", "/x/drain")):
        response = guarded.http.request(
            method, f"/v1/kvikk/replicas{path}", headers=bearer(ONE), json={"url": "http://x:1"}
        )
        assert response.status_code == 401
    assert guarded.post(headers=bearer(ADMIN_KEY)).status_code == 401
    # The figures show all tenants.
    assert guarded.http.get("/metrics", headers=bearer(ONE)).status_code == 401
    assert guarded.metric("kvikk_router_client_connections") >= 1


def test_limits_and_the_queue_say_429_with_a_time_and_others_are_not_hit(
    guarded: LiveRouter, replicas
):
    """Two replicas for two requests each, one place in the queue, three at once for a tenant."""
    with concurrent.futures.ThreadPoolExecutor(5) as pool:

        def ask(key: str) -> concurrent.futures.Future:
            return pool.submit(guarded.post, {"held": True}, headers=bearer(key))

        first = [ask(ONE) for _ in range(3)]
        wait_for(lambda: guarded.metric("kvikk_router_tenant_running_requests") == 3)
        refused = guarded.post(headers=bearer(ONE))
        assert refused.status_code == 429
        assert "3 requests of this key" in refused.json()["error"]["message"]
        assert refused.headers["retry-after"] == "1"
        first += [ask(OTHER) for _ in range(2)]  # one runs, one waits
        wait_for(lambda: guarded.metric("kvikk_router_waiting_requests") == 1)
        refused = guarded.post(headers=bearer(OTHER))
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert refused.headers["retry-after"] == "1"
        for one in replicas:
            one.release()
        assert [one.result().status_code for one in first] == [200] * 5
    assert guarded.metric("kvikk_router_tenant_running_requests") == 0
    assert guarded.is_idle()


def test_a_rate_is_kept_and_its_burst_allowed():
    with (
        stubs(1) as replicas,
        router(replicas, "--tenant-rate", "0.005", "--tenant-burst", "3") as live,
    ):
        statuses = [live.post().status_code for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        assert 100 < int(live.post().headers["retry-after"]) <= 200


def test_the_log_has_a_line_a_request_and_no_secret_or_text(guarded: LiveRouter, log: Path):
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 5},
    }
    tail = [f"data: {json.dumps({'usage': usage})}\n\n", "data: [DONE]\n\n"]
    body = {
        "messages": "the-words-of-a-prompt",
        "stub": {"chunks": 1, "tail": tail, "tail_s": 0.02},
    }
    response = guarded.post(
        None, "/v1/chat/completions?api_key=in-the-query", body=body, headers=bearer(ONE)
    )
    identity = response.headers["x-request-id"]

    def line() -> dict | None:
        whole, _, _ = log.read_text().rpartition("\n")
        lines = [json.loads(text) for text in whole.splitlines()]
        return next((one for one in lines if one["id"] == identity), None)

    wait_for(line)
    assert line()["status"] == 200
    assert line()["usage"] == {"prompt_tokens": 7, "cached_tokens": 5, "completion_tokens": 2}
    assert line()["path"] == "/v1/chat/completions"
    assert line()["route"] == response.headers["x-kvikk-route"]
    told = log.read_text() + guarded.http.get("/metrics", headers=bearer(ADMIN_KEY)).text
    for secret in (ONE, OTHER, REPLICAS_KEY, ADMIN_KEY, "the-words", "in-the-query", "wrong"):
        assert secret not in told


def test_admin_calls_are_off_without_a_key(replicas: list[StubReplica]):
    with router(replicas, wait=False, admin_key=None) as live:
        response = live.http.get("/v1/kvikk/replicas")
        assert response.status_code == 403
        assert "--admin-key" in response.json()["error"]["message"]
