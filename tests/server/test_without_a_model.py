"""What needs no real model to be shown: names, and who is told what when the engine fails."""

import asyncio
import json
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from kvikk.engine.loading import LoadedEngine
from kvikk.engine.memory import MemoryReport
from kvikk.engine.options import EngineOptions
from kvikk.server.app import create_app
from kvikk.server.billing.tabs import Tab
from kvikk.server.models import ServedModels
from kvikk.server.options import ServerOptions
from kvikk.text.chat import ChatTemplate
from tests.engine.driver import make_engine

BODY = {"model": "exact", "prompt": [1, 2, 3], "max_tokens": 4}


@pytest.fixture
def engine_and_backend():
    """An engine whose backend can be told to fail."""
    return make_engine()


@pytest.fixture
def loaded(engine_and_backend, smollm2_tokenizer):
    memory = MemoryReport(None, 0, 0, (), 4, "f32", 64, 64, 1.0)
    engine, _ = engine_and_backend
    return LoadedEngine(
        engine, smollm2_tokenizer, None, memory, "exact", "exact", EngineOptions(), 0.0, None
    )


@pytest.fixture
def parts(engine_and_backend, loaded):
    """The engine, its backend, and a client of a server over them."""
    engine, backend = engine_and_backend
    with TestClient(create_app(loaded, ServerOptions()), raise_server_exceptions=False) as client:
        yield engine, backend, client


def test_a_failing_step_ends_its_request_with_500_and_the_next_one_is_served(parts):
    _, backend, client = parts
    backend.failure = RuntimeError("out of luck at 0x7f")
    response = client.post("/v1/completions", json=BODY)
    assert response.status_code == 500
    error = response.json()["error"]
    assert error["type"] == "server_error"
    assert "0x7f" not in response.text
    assert client.post("/v1/completions", json=BODY).status_code == 200
    assert client.get("/health").status_code == 200


def test_a_failure_before_a_streams_first_token_has_its_status(parts):
    _, backend, client = parts
    backend.failure = RuntimeError("out of luck")
    response = client.post("/v1/completions", json=BODY | {"stream": True})
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"n": 2}])
def test_an_adapter_that_goes_before_its_request_begins_is_not_found(parts, monkeypatch, more):
    _, _, client = parts
    monkeypatch.setattr(ServedModels, "adapter_of", lambda self, name: "gone")
    response = client.post("/v1/completions", json=BODY | more)
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["message"] == "no adapter 'gone' is loaded"
    assert (error["param"], error["code"]) == ("model", "model_not_found")


def test_a_failure_in_the_middle_of_a_stream_is_its_last_event(parts, monkeypatch):
    _, backend, client = parts
    forward = backend.forward

    def fail_next(batch):
        logits = forward(batch)
        backend.failure = RuntimeError("out of luck")
        return logits

    monkeypatch.setattr(backend, "forward", fail_next)
    response = client.post("/v1/completions", json=BODY | {"stream": True})
    assert response.status_code == 200
    assert response.headers["x-kvikk-ledger"] == "tail=3"
    *_, last = response.text.strip().split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["type"] == "server_error"
    assert "[DONE]" not in response.text


def test_an_engine_that_has_stopped_is_told_by_health_and_by_503(parts, monkeypatch):
    engine, _, client = parts

    def broken_step():
        raise RuntimeError("a defect")

    monkeypatch.setattr(engine, "step", broken_step)
    assert client.post("/v1/completions", json=BODY).status_code == 500
    assert client.get("/health").status_code == 503
    assert client.get("/health").json() == {"status": "failed"}
    for path, body in [("/v1/completions", BODY), ("/v1/kvikk/cache/reset", None)]:
        refused = client.post(path, json=body)
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
    assert client.get("/metrics").status_code == 200


def test_a_defect_of_the_server_itself_is_500_without_a_traceback(parts, monkeypatch):
    _, _, client = parts
    monkeypatch.setattr(client.app.state.service, "submit", None)
    response = client.post("/v1/completions", json=BODY)
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "NoneType" not in response.text


@pytest.mark.parametrize("fails_at_the_end", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_bill_that_cannot_be_written_ends_its_request_and_leaves_nothing_behind(
    stream, fails_at_the_end, loaded, monkeypatch
):
    take = Tab.take

    def fail(tab, output):
        if output.ends_request or not fails_at_the_end:
            raise RuntimeError("no ink")
        take(tab, output)

    app = create_app(loaded, ServerOptions(tenant_requests=1))
    with TestClient(app, raise_server_exceptions=False) as client:
        with monkeypatch.context() as patch:
            patch.setattr(Tab, "take", fail)
            response = client.post("/v1/completions", json=BODY | {"stream": stream})
        begun = stream and fails_at_the_end
        assert response.status_code == (200 if begun else 500)
        assert "the engine failed on this request" in response.text
        assert "[DONE]" not in response.text
        assert client.post("/v1/completions", json=BODY).status_code == 200
        assert client.get("/v1/kvikk/cache").json()["live_blocks"] == 0


@pytest.mark.parametrize(
    ("model", "model_id"),
    [
        ("smollm2", "smollm2"),
        ("org/name", "org/name"),
        ("{here}/a.b.gguf", "a.b"),
        ("{here}", None),
    ],
)
def test_a_model_is_called_by_its_alias_or_by_the_name_of_its_file(
    model, model_id, loaded, tmp_path
):
    (tmp_path / "a.b.gguf").touch()
    named = replace(loaded, model=model.format(here=tmp_path))
    with TestClient(create_app(named, ServerOptions())) as client:
        (listed,) = client.get("/v1/models").json()["data"]
    assert listed["id"] == (model_id or tmp_path.name)


@pytest.mark.parametrize(
    ("messages", "beside"),
    [
        ([{"role": "user", "content": "Hi"}], False),
        ([{"role": "user", "content": "Hi " * 9000}], True),
        ([{"role": "user", "content": ""}] * 9000, True),
        ([{"role": "user", "content": "", "name": "Ada" * 9000}], True),
    ],
)
def test_a_long_conversation_is_rendered_beside_the_event_loop(
    messages, beside, loaded, smollm2_tokenizer
):
    class Watched(ChatTemplate):
        def render(self, *arguments, **options):
            seen.append(asyncio._get_running_loop() is None)
            return super().render(*arguments, **options)

    seen = []
    template = Watched("{{ messages | tojson }}", smollm2_tokenizer, "here")
    app = create_app(replace(loaded, chat_template=template), ServerOptions())
    with TestClient(app) as client:
        client.post("/v1/chat/completions", json={"model": "exact", "messages": messages})
    assert seen == [beside]


def test_a_chat_with_a_model_that_has_no_template_says_what_to_do(parts):
    _, _, client = parts
    body = {"model": "exact", "messages": [{"role": "user", "content": "Hi"}]}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert "--chat-template FILE" in response.json()["error"]["message"]
