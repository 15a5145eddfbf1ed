"""Every prompt token accounted for, as whoever sends requests and runs the server sees it."""

import json
from collections import Counter
from itertools import product
from pathlib import Path

import httpx
import pytest

from kvikk.engine.options import EngineOptions
from kvikk.server.options import ServerOptions
from tests.server.live import LiveServer, start
from tests.server.recount import recount

DATA = Path(__file__).parents[1] / "data" / "agent_text"
# A pool that holds the sessions' longest prompt, and nothing beside it.
BLOCK_BYTES = 16 * 30 * 2 * 3 * 64 * 2  # tokens, layers, keys and values, heads, elements, bytes
SMALL = EngineOptions(
    threads=1, kv_memory_bytes=72 * BLOCK_BYTES, block_size=16, max_context_tokens=1152
)
# Nothing in it is said twice.
HANDBOOK = " ".join(
    f"Rule {number}: a customer from {town} gets an answer about {thing} within {number + 1} hours."
    for number, (town, thing) in enumerate(
        product(("Bergen", "Oslo", "Moss"), ("bells", "brakes", "chains", "saddles", "tyres"))
    )
)


def sessions() -> list[str]:
    """The inputs of two real sessions in the order of their times."""
    lines = [
        json.loads(line)
        for file in sorted(DATA.glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    return [line["input"] for line in sorted(lines, key=lambda line: line["timestamp"])]


def complete(http: httpx.Client, prompt: object, **fields: object) -> httpx.Response:
    body = {"model": "smollm2", "prompt": prompt, "max_tokens": 1, "temperature": 0, **fields}
    response = http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response


def chat(http: httpx.Client, system: str, user: str, **fields: object) -> httpx.Response:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    body = {"model": "smollm2", "messages": messages, "max_tokens": 1, "temperature": 0, **fields}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return response


def of_header(response: httpx.Response) -> dict[str, int]:
    parts = (part.partition("=") for part in response.headers["x-kvikk-ledger"].split("; "))
    return {cause: int(tokens) for cause, _, tokens in parts}


def by_cause(spans: list[dict]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for span in spans:
        counts[span["cause"]] += span["stop"] - span["start"]
    return dict(counts)


def test_totals_of_real_sessions_in_a_small_pool_agree_with_an_offline_recount(tmp_path) -> None:
    file = tmp_path / "ledger.jsonl"
    options = ServerOptions(SMALL, port=0, ledger_log=file, ledger_text=True)
    with start(options) as live:
        responses = [complete(live.http, prompt) for prompt in sessions()]
        totals = live.get("/v1/kvikk/ledger").json()
        num_blocks = live.cache()["total_blocks"]
        counted = {
            cause: live.metric(f'kvikk_prompt_tokens_total{{cause="{cause}",model_name="smollm2"}}')
            for cause in totals["by_cause"]
        }
        metric = live.metric("kvikk_prompt_tokens_total")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["id"] for line in lines] == [response.json()["id"] for response in responses]
    assert [line["text"] for line in lines] == sessions()
    again = recount(lines, num_blocks)
    said = Counter(totals["by_cause"])
    # The sessions are long enough for this pool to forget, and alike enough to meet.
    assert min(said["hit.device"], said["evicted"], said["moved"]) > 200
    said["moved or new"] = said["moved"] + said.pop("new")
    assert again.surely_moved <= said.pop("moved") <= again.possibly_moved
    assert said == again.tokens
    prompt_tokens = sum(response.json()["usage"]["prompt_tokens"] for response in responses)
    assert totals["prompt_tokens"] == said.total() == metric == prompt_tokens
    assert totals["requests"] == len(responses)
    assert totals["rates"]["achieved"] == said["hit.device"] / prompt_tokens
    assert counted == totals["by_cause"]
    assert by_cause([span for line in lines for span in line["spans"]]) == totals["by_cause"]
    what_if = {entry["share"]: entry["hit_tokens"] for entry in totals["what_if"]}
    # Exact but for a prompt's unfinished last block, which counts in a pool as tight as this.
    assert abs(what_if[1] - said["hit.device"]) < 0.01 * said["hit.device"]
    assert what_if[0.5] < what_if[1] < what_if[4]


def test_a_clock_in_front_turns_hits_into_moved_and_the_advice_brings_them_back(
    tiny_model: Path,
) -> None:
    """Each replay is a tenant's, who is told of its own requests as if there were no other."""

    def clock(number: int) -> str:  # 9:59:58 grows by a character soon
        seconds = 9 * 3600 + 59 * 60 + 46 + 3 * number
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"

    def replay(url: str, key: str, prompts: list[str]) -> tuple[dict[str, int], dict]:
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=url, headers=headers, timeout=60) as http:
            responses = [complete(http, prompt, model="tiny") for prompt in prompts]
            totals = http.get("/v1/kvikk/ledger").json()["by_cause"]
            last = responses[-1].json()["id"]
            return totals, http.get(f"/v1/kvikk/requests/{last}").json()

    engine = EngineOptions(
        str(tiny_model), "reference", kv_memory_bytes=256 << 20, block_size=16, threads=1
    )
    texts = sessions()
    keys = ("plain", "in-front", "behind")
    with start(ServerOptions(engine, port=0, api_keys=keys)) as live:
        plain, _ = replay(live.url, keys[0], texts)
        clocks = [f"Now: {clock(number)}" for number in range(len(texts))]
        in_front, story = replay(
            live.url, keys[1], [f"{now}\n{text}" for now, text in zip(clocks, texts, strict=True)]
        )
        behind, _ = replay(
            live.url, keys[2], [f"{text}\n{now}" for now, text in zip(clocks, texts, strict=True)]
        )
    assert in_front.get("hit.device", 0) < 0.05 * plain["hit.device"]
    assert in_front["moved"] > 0.9 * plain["hit.device"]
    assert behind["hit.device"] > 0.95 * plain["hit.device"]
    finding = next(each for each in story["story"]["findings"] if each["cause"] == "moved")
    assert f'"{clock(len(texts) - 1)}" against ' in finding["text"]
    assert "a time" in finding["text"]
    assert "move the clock below what stays the same" in finding["mend"]


def test_a_request_tells_where_in_the_conversation_a_value_sits(idle_server: LiveServer) -> None:
    http = idle_server.http
    first = chat(http, f"It is 14:31:58. {HANDBOOK}", "Hello!").json()["id"]
    response = chat(http, f"It is 14:32:07. {HANDBOOK}", "Hello!")
    record = idle_server.get(f"/v1/kvikk/requests/{response.json()['id']}").json()
    (moved,) = [span for span in record["spans"] if span["cause"] == "moved"]
    assert moved["detail"]["request"] == first
    assert moved["detail"]["value"] == "14:32:07"
    assert moved["detail"]["seen_value"] == "14:31:58"
    assert moved["detail"]["kind"] == "time"
    assert moved["detail"]["where"] == "the system message"
    (finding,) = [each for each in record["story"]["findings"] if each["cause"] == "moved"]
    assert first in finding["text"]
    assert '"14:32:07" against "14:31:58", a time in the system message' in finding["text"]
    usage = response.json()["usage"]
    assert record["prompt_tokens"] == usage["prompt_tokens"]
    assert record["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert record["story"]["headline"].startswith(f"reused {record['cached_tokens']} of ")


def test_header_body_and_record_say_the_same_whole_and_streamed(idle_server: LiveServer) -> None:
    http, wanted = idle_server.http, {"kvikk": {"ledger": True}}
    for fields in (
        {},
        {"stream": True},
        {"stream": True, "stream_options": {"include_usage": True}},
    ):
        response = chat(http, HANDBOOK, "Hello!", **fields, **wanted)
        if fields:
            *_, last, done = [line for line in response.text.splitlines() if line]
            assert done == "data: [DONE]"
            body = json.loads(last.removeprefix("data: "))
        else:
            body = response.json()
        ledger = body["kvikk"]["ledger"]
        assert ledger["id"] == body["id"] == response.headers["x-request-id"]
        assert by_cause(ledger["spans"]) == of_header(response)
        record = idle_server.get(f"/v1/kvikk/requests/{body['id']}").json()
        assert by_cause(record["spans"]) == of_header(response)
        assert record["route"] == "/v1/chat/completions"
    assert of_header(response)["hit.device"] > 100
    assert "kvikk" not in chat(http, HANDBOOK, "Hello!").json()


def test_the_newest_requests_come_first(idle_server: LiveServer) -> None:
    ids = [complete(idle_server.http, f"{word} and so on").json()["id"] for word in "abc"]
    listed = idle_server.get("/v1/kvikk/requests?limit=3").json()["requests"]
    assert [request["id"] for request in listed] == ids[::-1]
    assert all(sum(by_cause(one["spans"]).values()) == one["prompt_tokens"] for one in listed)


def test_totals_add_up_however_they_are_grouped(idle_server: LiveServer) -> None:
    complete(idle_server.http, "one more, of the other route")
    chat(idle_server.http, "Be brief.", "Hello!")
    for by in ("tenant", "key", "route", "model"):
        totals = idle_server.get(f"/v1/kvikk/ledger?window=86400&by={by}").json()
        groups = totals["groups"].values()
        for name in ("requests", "prompt_tokens"):
            assert sum(group[name] for group in groups) == totals[name]
            assert sum(minute[name] for minute in totals["history"]) == totals[name]
    assert {"/v1/chat/completions", "/v1/completions"} <= set(
        idle_server.get("/v1/kvikk/ledger?by=route").json()["groups"]
    )


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/v1/kvikk/requests/cmpl-none", 404, "no request 'cmpl-none'"),
        ("/v1/kvikk/requests/%00%ff", 404, "no request"),
        ("/v1/kvikk/requests?limit=0", 400, "limit: expected a number from 1 to 1000, not '0'"),
        ("/v1/kvikk/requests?limit=many", 400, "limit: expected a number"),
        ("/v1/kvikk/ledger?window=-1", 400, "window: expected a number from 1 to 86400"),
        ("/v1/kvikk/ledger?window=nan", 400, "window: expected a number"),
        ("/v1/kvikk/ledger?window=%C2%B2", 400, "window: expected a number"),
        ("/v1/kvikk/ledger?by=colour", 400, "by: expected one of tenant, key, route, model"),
    ],
)
def test_bad_questions_get_one_line(path, status, message, server: LiveServer) -> None:
    response = server.get(path)
    assert response.status_code == status
    assert message in response.json()["error"]["message"]
    assert "\n" not in response.json()["error"]["message"]


@pytest.mark.parametrize("value", [True, "yes", [], {"ledger": "yes"}, {"ledger": 1}])
def test_a_bad_wish_for_the_ledger_is_refused(value, server: LiveServer) -> None:
    body = {"model": "smollm2", "prompt": "x", "max_tokens": 1, "kvikk": value}
    response = server.post("/v1/completions", body)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("kvikk")


def test_a_log_without_text_has_none(tmp_path: Path, tiny_model: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    engine = EngineOptions(str(tiny_model), "reference", kv_memory_bytes=8 << 20)
    with start(ServerOptions(engine, port=0, ledger_log=file)) as live:
        complete(live.http, "Between us: the password is swordfish.", model="tiny")
    (line,) = file.read_text().splitlines()
    assert set(json.loads(line)) == {
        *("id", "model", "tenant", "key", "route", "at", "prompt_tokens", "cached_tokens"),
        *("block_size", "block_keys", "spans"),
    }
    assert "swordfish" not in line
