"""Spans of requests as a collector gets them: OTLP over HTTP, decoded by the protocol's schema."""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from kvikk.errors import ModelError
from kvikk.server.tracing.export import SpanExport, check_endpoint
from kvikk.server.tracing.record import RequestTrace
from tests.server.live import LiveServer, start_command

TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01", "tracestate": "vendor=value"}
KEY = {"Authorization": "Bearer a-secret-key"}
SECRET = "unmistakable"
PATIENCE_S = 60


class Collector:
    """Takes what is sent to ``url``. While ``open`` is not set it lets everybody wait."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
        self.open = threading.Event()
        self.open.set()
        self.asked = threading.Event()
        self.raw = b""
        self.spans: list[Span] = []
        self.resource: dict[str, Any] = {}
        self._changed = threading.Condition()

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._changed:
            self.raw += body
            for resource in request.resource_spans:
                self.resource = values(resource.resource.attributes)
                for scope in resource.scope_spans:
                    self.spans += scope.spans
            self._changed.notify_all()

    def of(self, request_id: str) -> tuple[Span, dict[str, Span]]:
        """A request's span and those below it by name, once they are here."""

        def found() -> list[Span]:
            return [
                span
                for span in self.spans
                if values(span.attributes).get("gen_ai.response.id") == request_id
            ]

        with self._changed:
            assert self._changed.wait_for(found, PATIENCE_S)
            (span,) = found()
            below = [one for one in self.spans if one.parent_span_id == span.span_id]
        return span, {one.name: one for one in below}

    def with_status(self, status: int) -> Span:
        """The span of the one request that had this answer."""

        def found() -> list[Span]:
            key = "http.response.status_code"
            return [one for one in self.spans if values(one.attributes).get(key) == status]

        with self._changed:
            assert self._changed.wait_for(found, PATIENCE_S)
            (span,) = found()
        return span


def values(attributes: Any) -> dict[str, Any]:
    """Attributes as they were before they were encoded."""
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.asked.set()
            if collector.open.wait(PATIENCE_S):
                collector.take(body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(server)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            collector.open.set()
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as one:
        yield one


@pytest.fixture(scope="module")
def server(tiny_model: Path, collector: Collector) -> Iterator[LiveServer]:
    with serving(tiny_model, collector.url) as live:
        yield live


@contextmanager
def serving(model: Path, endpoint: str, timeout_s: int = PATIENCE_S) -> Iterator[LiveServer]:
    arguments = ["--port", "0", "--kv-memory", "64MiB", "--backend", "reference"]
    arguments += ["--api-key", "a-secret-key", "--otlp-traces-endpoint", endpoint]
    timeout = {"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": str(timeout_s)}
    with start_command("kvikk", "serve", str(model), *arguments, **timeout) as live:
        yield live


def chat(server: LiveServer, prompt: str, **fields: object) -> Any:
    headers = fields.pop("headers", {})
    body = {"model": "tiny", "max_tokens": 5, "temperature": 0, "ignore_eos": True} | fields
    body["messages"] = [{"role": "user", "content": prompt}]
    response = server.post("/v1/chat/completions", body, headers=KEY | headers)
    assert response.status_code == 200
    return response


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_a_child_of_its_callers_span_and_has_its_phases_below(
    server: LiveServer, collector: Collector, stream: bool
) -> None:
    prompt = f"{SECRET} {stream} " + "word " * 100
    chat(server, prompt)
    began_ns = time.time_ns()
    response = chat(server, prompt, headers=PARENT, seed=7, stream=stream, stop=["unsaid"])
    ended_ns = time.time_ns()
    request_id = response.headers["x-request-id"]
    span, below = collector.of(request_id)
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE_ID, PARENT_ID)
    assert span.trace_state == "vendor=value"
    assert (span.name, span.kind) == ("chat tiny", Span.SPAN_KIND_SERVER)
    assert span.status.code == Status.STATUS_CODE_UNSET
    told = values(span.attributes)
    ledger = dict(part.split("=") for part in response.headers["x-kvikk-ledger"].split("; "))
    causes = {key: str(count) for key, count in told.items() if key.startswith("kvikk.prompt_")}
    assert causes == {f"kvikk.prompt_tokens.{cause}": count for cause, count in ledger.items()}
    assert told["gen_ai.usage.input_tokens"] == sum(map(int, ledger.values()))
    assert told["gen_ai.usage.cache_read.input_tokens"] == int(ledger["hit.device"]) > 0
    first_chunk_s = told.get("gen_ai.response.time_to_first_chunk")
    assert 0 < first_chunk_s < (ended_ns - began_ns) / 1e9 if stream else first_chunk_s is None
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "kvikk",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stream": stream,
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.output_tokens": 5,
        "http.response.status_code": 200,
        "url.path": "/v1/chat/completions",
        "kvikk.complete": True,
        "kvikk.tenant": "default",
    }
    assert told | expected == told
    # The phases follow on one another, inside the request's own time.
    phases = [below[name] for name in ("queue", "prefill", "decode")]
    assert len(below) == 3
    assert all(phase.trace_id == span.trace_id for phase in phases)
    moments = [began_ns, span.start_time_unix_nano]
    for phase in phases:
        moments += [phase.start_time_unix_nano, phase.end_time_unix_nano]
    moments.append(span.end_time_unix_nano)
    assert moments == sorted(moments)
    for one, two in pairwise(phases):
        assert one.end_time_unix_nano == two.start_time_unix_nano
    # Who serves, and nothing of what was said or of the key.
    assert collector.resource["service.name"] == "kvikk"
    for secret in (SECRET, "word word", "unsaid", "a-secret-key"):
        assert secret.encode() not in collector.raw


def test_a_request_without_a_parent_begins_a_trace_and_one_that_is_not_sampled_has_none(
    server: LiveServer, collector: Collector
) -> None:
    unsampled = {"traceparent": f"00-{'ab' * 16}-{PARENT_ID}-00"}
    chat(server, "one", headers=unsampled)
    own, _ = collector.of(chat(server, "two").headers["x-request-id"])
    assert own.parent_span_id == b""
    assert own.trace_id.hex() not in (TRACE_ID, "00" * 16)
    assert all(span.trace_id.hex() != "ab" * 16 for span in collector.spans)


def test_texts_that_become_vectors_are_one_span(server: LiveServer, collector: Collector) -> None:
    body = {"model": "tiny", "input": ["one two", SECRET + " three" * 40]}
    answer = server.post("/v1/embeddings", body, headers=KEY)
    span, below = collector.of(answer.headers["x-request-id"])
    told = values(span.attributes)
    assert (span.name, below) == ("embeddings tiny", {})
    assert told["gen_ai.usage.input_tokens"] == answer.json()["usage"]["prompt_tokens"] > 40
    causes = [count for key, count in told.items() if key.startswith("kvikk.prompt_tokens.")]
    assert sum(causes) == told["gen_ai.usage.input_tokens"]
    assert SECRET.encode() not in collector.raw


def test_a_refused_request_has_a_span_that_says_so(
    server: LiveServer, collector: Collector
) -> None:
    assert server.post("/v1/completions", {}).status_code == 401
    bad = {"model": "tiny", "prompt": SECRET, "temperature": -1}
    assert server.post("/v1/completions", bad, headers=KEY).status_code == 400
    for status in (400, 401):
        span = collector.with_status(status)
        assert span.name == "text_completion"
        assert span.status.code == Status.STATUS_CODE_UNSET  # the caller's fault, not the server's


def test_a_client_that_leaves_has_a_span_that_ends_there(
    server: LiveServer, collector: Collector
) -> None:
    body = {"model": "tiny", "prompt": "on", "max_tokens": 8000, "ignore_eos": True, "stream": True}
    with server.http.stream("POST", "/v1/completions", json=body, headers=KEY) as response:
        next(response.iter_lines())
        request_id = response.headers["x-request-id"]
    span, below = collector.of(request_id)
    told = values(span.attributes)
    assert (told["kvikk.complete"], told["http.response.status_code"]) == (False, 200)
    assert "gen_ai.response.finish_reasons" not in told
    assert 0 < told["gen_ai.usage.output_tokens"] < 8000
    assert below["decode"].end_time_unix_nano == span.end_time_unix_nano


def test_what_was_sent_is_counted(server: LiveServer) -> None:
    before = server.metric('kvikk_traces_total{outcome="sent"}')
    chat(server, "three")
    server.wait_for(lambda: server.metric('kvikk_traces_total{outcome="sent"}') > before)


def test_a_dead_collector_holds_up_nobody_and_is_spoken_of(tiny_model: Path) -> None:
    with collecting() as dead:
        pass
    with serving(tiny_model, dead.url, 1) as live:
        for _ in range(3):
            chat(live, "hello")
        live.wait_for(lambda: live.metric('kvikk_traces_total{outcome="refused"}') == 3)
        live.process.terminate()
        _, log = live.process.communicate(timeout=PATIENCE_S)
    assert live.process.returncode == 0
    assert f"did not reach {dead.url}: " in log
    assert "Traceback" not in log


def test_a_slow_collector_costs_the_spans_that_have_no_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with collecting() as slow:
        slow.open.clear()
        export = SpanExport(slow.url, max_waiting=3)
        export.put(RequestTrace("chat", {}))
        assert slow.asked.wait(PATIENCE_S)
        with caplog.at_level(logging.WARNING):
            for _ in range(5):
                export.put(RequestTrace("chat", {}))
        assert export.counts["dropped"] == 2
        assert f"spans of 1 requests did not reach {slow.url}: " in caplog.text
        slow.open.set()
        export.close()
        assert export.counts == {"sent": 4, "refused": 0, "dropped": 2}
        assert len(slow.spans) == 4


def test_nothing_is_imported_for_spans_and_tiers_that_nobody_asked_for() -> None:
    """Of OpenTelemetry nothing but what FastAPI looks for by itself."""
    code = (
        "import sys, kvikk.server.serve; "
        "ours = ('opentelemetry.sdk.trace', 'opentelemetry.exporter.otlp', 'opentelemetry.proto', "
        "'redis', 'ray.'); "
        "assert not [name for name in sys.modules if name.startswith(ours)]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "endpoint",
    ["localhost:4318", "grpc://localhost:4317", "http://", "", "http://[::1", "http://x:99999/"],
)
def test_an_address_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(ModelError, match=r"is no address of a collector, which is like http://"):
        check_endpoint(endpoint)


def test_without_opentelemetry_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ModelError, match=r"pip install 'kvikk\[otel\]'"):
        check_endpoint("http://localhost:4318/v1/traces")
