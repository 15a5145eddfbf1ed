"""Keys, limits, draining: what whoever runs a server relies on."""

import re
import shutil
import signal
import subprocess
import threading

import httpx
import pytest

from kvikk.engine.options import EngineOptions
from kvikk.errors import ModelError, RequestError
from kvikk.server.options import ServerOptions
from kvikk.server.serve import run_server
from tests.server.live import PATIENCE_S, start

HELLO = {"model": "smollm2", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
LONG = {"model": "smollm2", "prompt": "word " * 80, "max_tokens": 1}
KEYS = ("key-of-ada", "key-of-bob")
OPERATOR = "key-of-the-operator"


@pytest.fixture(scope="module")
def guarded():
    """Two tenants, two running requests, one waiting."""
    engine = EngineOptions(
        threads=1, kv_memory_bytes=128 << 20, max_context_tokens=1024, max_running=2, max_queue=1
    )
    options = ServerOptions(
        engine, port=0, api_keys=KEYS, operator_key=OPERATOR, drain_s=200, tenant_requests=10
    )
    with start(options) as live:
        yield live


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wrong"),
        {"Authorization": "Bearer"},
        bearer("key-of-ada2"),
        {"Authorization": "key-of-ada"},
        {"Authorization": "Basic key-of-ada"},
        {"Authorization": "Bearer k\u00e9y".encode("latin-1")},
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/kvikk/cache", "/v1/nothing"])
def test_without_a_key_nothing_is_told(headers, path, guarded):
    response = guarded.http.get(path, headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    assert "key-of" not in response.text


def test_every_key_opens_and_health_needs_none(guarded):
    for key in KEYS:
        assert [model.id for model in guarded.client(key).models.list()] == ["smollm2"]
    assert guarded.get("/health").json() == {"status": "ok"}
    assert guarded.http.head("/health").status_code == 200


def test_each_key_has_a_cache_of_its_own(guarded):
    def cached_tokens(key, **fields):
        response = guarded.post("/v1/completions", LONG | fields, headers=bearer(key))
        return response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    ada, bob = KEYS
    assert [cached_tokens(key) for key in (ada, bob, ada, bob)] == [0, 0, 64, 64]
    assert [cached_tokens(key, cache_salt="s") for key in (ada, bob, ada)] == [0, 0, 64]


def test_what_all_tenants_use_is_for_the_operator_to_see(guarded):
    for path in ("/metrics", "/v1/kvikk/cache"):
        statuses = [guarded.http.get(path, headers=bearer(key)).status_code for key in KEYS]
        assert statuses == [403, 403]
        assert guarded.http.get(path, headers=bearer(OPERATOR)).status_code == 200
        assert guarded.get(path).status_code == 401


def test_only_the_operator_may_take_the_cache_from_everybody(guarded):
    def reset(key):
        return guarded.post("/v1/kvikk/cache/reset", headers=bearer(key))

    for key in KEYS:
        assert reset(key).status_code == 403
        assert reset(key).json()["error"]["type"] == "permission_error"
    assert reset(OPERATOR).json()["complete"]


def test_a_full_queue_is_429_with_the_time_to_wait(guarded):
    body = {"model": "smollm2", "prompt": "x", "max_tokens": 800, "ignore_eos": True}
    with httpx.Client(base_url=guarded.url, headers=bearer(KEYS[0]), timeout=60) as client:
        refused_one = threading.Event()

        def read_until_then() -> None:
            with client.stream("POST", "/v1/completions", json=body | {"stream": True}):
                refused_one.wait()

        readers = [threading.Thread(target=read_until_then) for _ in range(3)]
        for reader in readers:
            reader.start()
        for name, count in (("running", 2), ("waiting", 1)):
            guarded.wait_for(
                lambda metric=f"vllm:num_requests_{name}", count=count: (
                    guarded.metric(metric, bearer(OPERATOR)) == count
                )
            )
        refused = client.post("/v1/completions", json=body)
        refused_one.set()
        for reader in readers:
            reader.join()
        # The same request, sent again when there is room.
        short = body | {"max_tokens": 1}
        guarded.wait_for(lambda: client.post("/v1/completions", json=short).status_code == 200)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert "3 requests are running or waiting" in refused.json()["error"]["message"]


def test_sigterm_lets_answers_finish_refuses_new_ones_and_exits_0(guarded):
    client = httpx.Client(base_url=guarded.url, headers=bearer(KEYS[0]), timeout=200)
    body = {"model": "smollm2", "prompt": "a secret", "max_tokens": 200, "ignore_eos": True}
    answers = []
    running = threading.Thread(
        target=lambda: answers.append(client.post("/v1/completions", json=body))
    )
    with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
        lines = stream.iter_lines()
        next(lines)
        running.start()
        running_metric = "vllm:num_requests_running"
        guarded.wait_for(lambda: guarded.metric(running_metric, bearer(OPERATOR)) == 2)
        guarded.process.send_signal(signal.SIGTERM)
        guarded.wait_for(lambda: guarded.get("/health").status_code == 503)
        refused = guarded.post("/v1/completions", body, headers=bearer(KEYS[1]))
        assert refused.status_code == 503
        assert refused.json()["error"]["type"] == "server_error"
        assert "shutting down" in refused.json()["error"]["message"]
        assert "retry-after" in refused.headers
        *_, last = (line for line in lines if line)
        assert last == "data: [DONE]"
    running.join()
    assert answers[0].status_code == 200
    assert answers[0].json()["usage"]["completion_tokens"] == 200
    assert guarded.process.wait(timeout=PATIENCE_S) == 0
    log = guarded.process.stderr.read()
    assert "draining" in log
    assert "Traceback" not in log
    assert "key-of" not in log
    assert "secret" not in log


@pytest.mark.parametrize(("drain_s", "num_signals"), [(0.2, 1), (60.0, 2)])
def test_answers_over_the_time_to_drain_are_cut_off_and_so_they_are_by_a_second_signal(
    drain_s, num_signals
):
    engine = EngineOptions(threads=1, kv_memory_bytes=128 << 20, max_context_tokens=4096)
    with start(ServerOptions(engine, port=0, drain_s=drain_s)) as live:
        body = {"model": "smollm2", "prompt": "x", "max_tokens": 4000, "ignore_eos": True}
        with httpx.stream(
            "POST", f"{live.url}/v1/completions", json=body | {"stream": True}, timeout=60
        ) as stream:
            lines = stream.iter_lines()
            next(lines)
            live.process.send_signal(signal.SIGTERM)
            if num_signals == 2:  # and the first has been heard: two can be taken for one
                live.wait_for(lambda: live.get("/health").status_code == 503)
                live.process.send_signal(signal.SIGTERM)
            *_, last = (line for line in lines if line)
        assert "the server is shutting down; the answer was cut short" in last
        assert live.process.wait(timeout=PATIENCE_S) == 0


def test_a_server_whose_log_nobody_reads_any_more_still_ends() -> None:
    with start(ServerOptions(EngineOptions(threads=1, kv_memory_bytes=64 << 20), port=0)) as live:
        live.process.stderr.close()
        live.process.send_signal(signal.SIGTERM)
        live.process.wait(timeout=PATIENCE_S)


def test_an_address_in_use_is_one_clear_line_before_any_loading(server):
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(RequestError, match=rf"cannot listen on 127\.0\.0\.1 port {port}: .*--port"):
        run_server(ServerOptions(EngineOptions(model="no such model"), port=port))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"port": 70000}, "port 70000"),
        ({"api_keys": ("",)}, "API key"),
        ({"api_keys": ("a\nb",)}, "API key"),
        ({"max_body_bytes": 0}, "at least 1"),
        ({"drain_s": -1.0}, "time to drain is -1 s"),
        ({"drain_s": float("nan")}, "time to drain is nan s"),
        ({"drain_s": float("inf")}, "time to drain is inf s"),
    ],
)
def test_options_without_sense_are_refused(fields, message):
    with pytest.raises(ModelError, match=message):
        ServerOptions(**fields)


def test_the_cache_route_counts_every_block_once(idle_server):
    empty = idle_server.cache()
    assert empty["live_blocks"] == empty["cached_blocks"] == 0
    assert empty["empty_blocks"] == empty["total_blocks"] > 0
    assert empty["block_size"] == 32
    assert sum(group["total_blocks"] for group in empty["groups"]) == empty["total_blocks"]
    idle_server.post("/v1/completions", LONG)
    idle_server.wait_until_idle()
    after = idle_server.cache()
    assert after["cached_blocks"] == 80 // 32
    assert after["cached_blocks"] + after["empty_blocks"] == after["total_blocks"]
    reset = idle_server.post("/v1/kvikk/cache/reset").json()
    expected = {"complete": True, "dropped_blocks": 2, "held_blocks": 0, "held_by_requests": 0}
    assert reset == expected
    assert idle_server.cache() == empty


def test_a_reset_while_a_request_runs_says_what_it_left(idle_server):
    body = {"model": "smollm2", "prompt": "word " * 80, "max_tokens": 1000, "ignore_eos": True}
    url = f"{idle_server.url}/v1/completions"
    with httpx.stream("POST", url, json=body | {"stream": True}, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        reset = idle_server.post("/v1/kvikk/cache/reset").json()
    assert not reset["complete"]
    assert reset["held_by_requests"] == 1
    assert reset["held_blocks"] >= 3
    idle_server.wait_until_idle()
    cached = idle_server.post("/v1/completions", LONG).json()["usage"]["prompt_tokens_details"]
    assert cached["cached_tokens"] == 0


def test_metrics_count_what_responses_report(idle_server):
    names = [
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:request_success_total",
        "vllm:time_to_first_token_seconds_count",
        "vllm:e2e_request_latency_seconds_count",
        "vllm:inter_token_latency_seconds_count",
    ]
    before = [idle_server.metric(name) for name in names]

    def grown() -> list[float]:
        now = [idle_server.metric(name) for name in names]
        return [new - old for new, old in zip(now, before, strict=True)]

    body = LONG | {"max_tokens": 5, "ignore_eos": True}
    usages = [idle_server.post("/v1/completions", body).json()["usage"] for _ in range(2)]
    prompt_tokens = sum(usage["prompt_tokens"] for usage in usages)
    hits = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    expected = [prompt_tokens, 10, prompt_tokens, hits, 2, 2, 2, 8]
    idle_server.wait_for(lambda: sum(grown()) >= sum(expected))
    assert grown() == expected
    assert hits == 64
    idle_server.wait_for(lambda: idle_server.metric("vllm:kv_cache_usage_perc") == 0)
    content_type = idle_server.get("/metrics").headers["content-type"]
    assert re.match(r"text/plain; version=", content_type)


def test_curl_gets_an_answer_whole_and_streamed(server, tmp_path):
    curl = shutil.which("curl")
    assert curl is not None
    (tmp_path / "body.json").write_text(
        '{"model": "smollm2", "stream": true, "max_tokens": 3, "ignore_eos": true,'
        ' "messages": [{"role": "user", "content": "Hi"}]}'
    )

    def run(*arguments):
        command = [curl, "-sS", "--fail-with-body", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=2 * PATIENCE_S
        ).stdout

    streamed = run(
        "-N",
        f"{server.url}/v1/chat/completions",
        *("-H", "Content-Type: application/json"),
        *("-d", f"@{tmp_path / 'body.json'}"),
    )
    lines = streamed.split("\n\n")
    assert all(line.startswith("data: ") for line in lines[:-1])
    assert lines[-2:] == ["data: [DONE]", ""]
    whole = run("--json", '{"model": "smollm2", "prompt": "Hi"}', f"{server.url}/v1/completions")
    assert '"object":"text_completion"' in whole
