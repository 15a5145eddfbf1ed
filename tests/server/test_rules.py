"""``kvikk serve --rules``: usage as a provider would report it, from what the cache really held."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvikk.server.options import ServerOptions
from tests.server.live import LiveServer, start
from tests.server.tiny import tiny_engine, words, write_tiny_model

BLOCK_SIZE = 32
HANDBOOK_WORDS = 2600


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@contextmanager
def served(folder: Path, rules: str | None, **options) -> Iterator[LiveServer]:
    clock = folder / "clock"
    clock.write_text("0")
    engine = tiny_engine(folder, **options.pop("engine", {}))
    with start(ServerOptions(engine, port=0, rules=rules, clock=clock, **options)) as server:
        yield server


def chat(server: LiveServer, *messages: tuple[str, object], **fields) -> dict:
    body = {
        "model": "tiny",
        "messages": [{"role": role, "content": content} for role, content in messages],
        "max_tokens": 1,
    }
    response = server.post("/v1/chat/completions", body | fields)
    assert response.status_code == 200, response.text
    return response.json()


def counts(usage: dict) -> tuple[int, int, int]:
    """Tokens of the prompt, read, and written."""
    details = usage["prompt_tokens_details"]
    return usage["prompt_tokens"], details["cached_tokens"], details["cache_write_tokens"]


def place(arrangement: str, question: str) -> list[tuple[str, str]]:
    handbook = words(arrangement, HANDBOOK_WORDS)
    return {
        "A": [("user", f"{question} {handbook}")],
        "B": [("user", f"{handbook} {question}")],
        "C": [("system", handbook), ("user", question)],
        "D": [("system", question), ("user", handbook)],
    }[arrangement]


@pytest.mark.parametrize(
    ("rules", "hits", "ratios"),
    [
        ("openai:gpt-4o", {"A": 0, "B": 7, "C": 7, "D": 0}, None),
        ("openai:gpt-5.4", {"A": 0, "B": 7, "C": 7, "D": 0}, None),
        (
            "openai:gpt-5.6",
            {"A": 0, "B": 0, "C": 7, "D": 0},
            {"A": 1.25, "B": 1.25, "C": 0.25, "D": 1.25},
        ),
    ],
)
def test_the_essays_arrangements_of_handbook_and_question(folder, rules, hits, ratios):
    # Each arrangement is a tenant's, so that the bill can be told apart by it.
    with served(folder, rules, api_keys=tuple("ABCD")) as server:
        for arrangement in "ABCD":
            bearer = {"Authorization": f"Bearer {arrangement}"}
            server.http.headers.update(bearer)
            usages = [
                chat(server, *place(arrangement, words(seed, 10)))["usage"] for seed in range(8)
            ]
            assert sum(counts(usage)[1] > 0 for usage in usages) == hits[arrangement], arrangement
            for prompt, read, written in map(counts, usages):
                assert read + written <= prompt
                if "5.6" not in rules:
                    assert (read % 128, written) == (0, 0)
            total = server.get("/v1/kvikk/bill").json()["total"]
            assert total["requests"] == 8
            if ratios is not None:
                assert round(total["bill_ratio"], 2) == ratios[arrangement]


@pytest.fixture(scope="module")
def gpt_5_6(folder) -> Iterator[LiveServer]:
    with served(folder, "openai:gpt-5.6-sol", price_per_hour=3.6) as server:
        yield server


def test_counts_add_up_and_the_spans_tile_the_prompt_beside_the_physical_ledger(gpt_5_6):
    system = ("system", words("sums", 1500))
    for turn in range(3):
        answer = chat(gpt_5_6, system, ("user", words(turn, 70)), kvikk={"ledger": True})
        told = answer["kvikk"]["provider"]
        prompt, read, written = counts(answer["usage"])
        assert (told["read_tokens"], told["written_tokens"]) == (read, written)
        assert told["read_tokens"] + told["written_tokens"] + told["plain_tokens"] == prompt
        stops = [span["stop"] for span in told["spans"]]
        assert [span["start"] for span in told["spans"]] == [0, *stops[:-1]]
        assert stops[-1] == prompt
        kept = gpt_5_6.get(f"/v1/kvikk/requests/{answer['id']}").json()
        assert kept["provider"] == told
        # Never a read whose full blocks below the boundary the cache did not hold.
        assert read // BLOCK_SIZE * BLOCK_SIZE <= kept["cached_tokens"]
        assert (read > 0) == (turn > 0)


def test_the_header_tells_what_the_provider_would_bill(gpt_5_6):
    body = {"model": "tiny", "messages": [{"role": "user", "content": words("h", 1200)}]}
    response = gpt_5_6.post("/v1/chat/completions", body | {"max_tokens": 1})
    prompt, read, written = counts(response.json()["usage"])
    told = response.headers["x-kvikk-provider"]
    assert told == f"read={read}; written={written}; plain={prompt - read - written}"


def test_a_stream_and_a_whole_answer_say_the_same(gpt_5_6):
    messages = [{"role": "system", "content": words("stream", 1300)}]
    messages += [{"role": "user", "content": words("again", 30)}]
    client = gpt_5_6.client()
    client.chat.completions.create(model="tiny", messages=messages, max_tokens=3)
    whole = client.chat.completions.create(model="tiny", messages=messages, max_tokens=3)
    *_, last = client.chat.completions.create(
        model="tiny",
        messages=messages,
        max_tokens=3,
        stream=True,
        stream_options={"include_usage": True},
    )
    assert last.usage == whole.usage
    assert whole.usage.prompt_tokens_details.cached_tokens > 1300


def test_what_the_cache_does_not_hold_any_more_is_not_read(gpt_5_6):
    messages = (("system", words("evicted", 1500)), ("user", words("q", 9)))
    assert counts(chat(gpt_5_6, *messages)["usage"])[1] == 0
    assert counts(chat(gpt_5_6, *messages)["usage"])[1] > 1500
    gpt_5_6.wait_until_idle()
    assert gpt_5_6.post("/v1/kvikk/cache/reset").json()["complete"]
    answer = chat(gpt_5_6, *messages, kvikk={"ledger": True})
    assert counts(answer["usage"])[1] == 0
    assert answer["kvikk"]["provider"]["spans"][0]["reason"] == "not_held"
    assert counts(chat(gpt_5_6, *messages)["usage"])[1] > 1500


def test_an_entry_lives_as_long_as_the_rules_say_whatever_the_cache_holds(gpt_5_6, folder):
    messages = (("system", words("lifetime", 1500)), ("user", words("q", 9)))
    chat(gpt_5_6, *messages)
    read = []
    for at_s in (1700, 3400, 5300):
        (folder / "clock").write_text(str(at_s))
        answer = chat(gpt_5_6, *messages, kvikk={"ledger": True})
        read.append(counts(answer["usage"])[1] > 0)
    (folder / "clock").write_text("0")
    assert read == [True, True, False]
    assert answer["kvikk"]["provider"]["spans"][0]["reason"] == "expired"
    assert answer["kvikk"]["ledger"]["cached_tokens"] > 1400  # the real cache had it all the time


def test_what_belongs_to_the_key_breaks_reuse_and_the_rest_does_not(gpt_5_6):
    messages = (("system", words("key", 1500)), ("user", words("q", 9)))
    chat(gpt_5_6, *messages, prompt_cache_key="a")
    for fields, reason in (
        ({"prompt_cache_key": "b"}, "changed"),
        ({"prompt_cache_key": "a", "temperature": 0.5, "seed": 3}, "entry"),
        ({"prompt_cache_key": "a", "service_tier": "flex"}, "changed"),
    ):
        answer = chat(gpt_5_6, *messages, kvikk={"ledger": True}, **fields)
        assert answer["kvikk"]["provider"]["spans"][0]["reason"] == reason, fields


def test_explicit_mode_caches_at_marked_parts_alone(gpt_5_6):
    def ask(seed, **options):
        part = {"type": "text", "text": words("explicit", 1400), **options}
        fields = {"prompt_cache_options": {"mode": "explicit"}}
        messages = (("system", [part]), ("user", words(seed, 9)))
        return counts(chat(gpt_5_6, *messages, **fields)["usage"])[1:]

    assert [ask(1), ask(2)] == [(0, 0), (0, 0)]
    marker = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    first, second = ask(3, **marker), ask(4, **marker)
    assert first[0] == 0
    assert first[1] == second[0] > 1400
    assert second[1] == 0


def test_plain_completions_and_token_ids_are_one_message(gpt_5_6):
    body = {"model": "tiny", "prompt": words("plain", 1200), "max_tokens": 1}
    usages = [gpt_5_6.post("/v1/completions", body).json()["usage"] for _ in range(2)]
    assert counts(usages[0]) == (usages[0]["prompt_tokens"], 0, usages[0]["prompt_tokens"])
    assert counts(usages[1])[1] in (0, usages[1]["prompt_tokens"])
    body["prompt"] = body["prompt"] + " " + words("more", 3)
    assert counts(gpt_5_6.post("/v1/completions", body).json()["usage"])[1] == 0


def test_all_three_formats_say_the_same_in_a_stream_and_whole(gpt_5_6):
    system, question = words("formats", 1300), words("formats too", 20)
    chat(gpt_5_6, ("system", system), ("user", question))
    told = set()
    bodies = {
        "/v1/chat/completions": {
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": question},
            ],
            "max_tokens": 1,
        },
        "/v1/responses": {"instructions": system, "input": question, "max_output_tokens": 1},
        "/v1/messages": {
            "system": system,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": 1,
        },
    }
    before = gpt_5_6.get("/v1/kvikk/bill").json()["total"]
    for route, body in bodies.items():
        for stream in (False, True):
            options = {"model": "tiny", "stream": stream}
            if stream and "chat" in route:
                options["stream_options"] = {"include_usage": True}
            response = gpt_5_6.post(route, body | options)
            if stream:
                lines = response.text.splitlines()
                data = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
                usages = [found for one in data if (found := usage_in(one))]
            else:
                usages = [response.json()["usage"]]
            told |= {
                (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"])
                if "messages" in route
                else counts_of(usage)
                for usage in usages
                if "messages" not in route or "input_tokens" in usage
            }
    assert len(told) == 1
    ((read, written),) = told
    assert (read > 1300, written) == (True, 0)
    after = gpt_5_6.get("/v1/kvikk/bill").json()["total"]
    assert after["read_tokens"] - before["read_tokens"] == 6 * read


def usage_in(event: dict) -> dict | None:
    """The usage of a stream's event, wherever its format has it."""
    for holder in (event, event.get("response") or {}, event.get("message") or {}):
        if holder.get("usage"):
            return holder["usage"]
    return None


def counts_of(usage: dict) -> tuple[int, int]:
    details = usage.get("prompt_tokens_details") or usage["input_tokens_details"]
    return details["cached_tokens"], details["cache_write_tokens"]
