"""Whatever the description of the API allows, and much that it does not: never a failure."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error

from kvikk.engine.options import EngineOptions
from kvikk.server.options import ServerOptions
from tests.server.live import LiveServer, start

# A short context: whoever asks for no limit gets a short answer.
ENGINE = EngineOptions(threads=1, kv_memory_bytes=64 << 20, max_context_tokens=128)
ANSWERING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
# Of what the description allows not half gets an answer, and these are to give some: more of them.
FEW, MORE = 6, 16
QUICKLY = settings(
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)


@pytest.fixture(scope="module")
def short_server() -> Iterator[LiveServer]:
    with start(ServerOptions(ENGINE, port=0)) as live:
        yield live


@pytest.fixture(scope="module")
def api(short_server: LiveServer) -> Any:
    described = schemathesis.openapi.from_url(f"{short_server.url}/openapi.json")

    @described.hook
    def map_body(context: Any, body: Any) -> Any:
        """Ask for the model that is there, for few answers, and for a stream where one is meant.

        Of another model nothing but its name is looked at, and a hundred answers take their time.
        """
        if not isinstance(body, dict):
            return body
        few = {name: body[name] % 3 for name in ("n", "best_of") if type(body.get(name)) is int}
        known = {"model": "smollm2"} if isinstance(body.get("model"), str) else {}
        stream = {"stream": True} if isinstance(body.get("stream_options"), dict) else {}
        return body | few | known | stream

    # Of the two that are left out one never ends, and one is the tests' own.
    return described.exclude(path="/v1/kvikk/live").exclude(path_regex="^/test/")


@pytest.mark.parametrize("mode", GenerationMode)
def test_no_request_makes_the_server_fail(mode: GenerationMode, api: Any) -> None:
    statuses: Counter[tuple[str, int]] = Counter()
    for result in api.get_all_operations():
        operation = result.ok()

        @settings(QUICKLY, max_examples=MORE if operation.path in ANSWERING else FEW)
        @given(operation.as_strategy(generation_mode=mode))
        def ask(case: Any) -> None:
            response = case.call(timeout=250)  # its own ten seconds are few on a busy machine
            statuses[case.path, response.status_code] += 1
            case.validate_response(response, checks=[not_a_server_error])

        # Any text is a path: there is nothing wrong to try.
        if mode.is_positive or operation.body or operation.query:
            ask()
    tried = {path for path, _ in statuses}
    assert tried >= set(ANSWERING)
    for path in ANSWERING if mode.is_positive else ():
        assert statuses[path, 200] >= 1, statuses
