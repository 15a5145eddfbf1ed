"""Gemma 3 behind HTTP: what its window group has lost, its ledger and its story say by name."""

from kvikk.engine.options import EngineOptions
from kvikk.server.options import ServerOptions
from tests.server import live

RULES = "Answer from the handbook below, and from nowhere else. " * 30
HARBOUR = "The keeper counted the ships that passed in the night. " * 36
MOUNTAINS = "Above the village, snow falls without a sound on roofs. " * 36
BLOCK, WINDOW = 32, 512


def test_a_window_that_made_room_is_named_in_ledger_and_story() -> None:
    engine = EngineOptions("gemma3-270m", kv_memory_bytes=24 << 20, max_context_tokens=1200)
    with live.start(ServerOptions(engine, port=0)) as server:

        def ask(text: str) -> tuple[str, dict, int]:
            body = {"model": "gemma3-270m", "prompt": text, "max_tokens": 6, "temperature": 0}
            answer = server.post("/v1/completions", body).json()
            ledger = server.get(f"/v1/kvikk/requests/{answer['id']}").json()
            usage = answer["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            hits = [span for span in ledger["spans"] if span["cause"].startswith("hit.")]
            assert sum(span["stop"] - span["start"] for span in hits) == cached
            return answer["choices"][0]["text"], ledger, cached

        first, _, _ = ask(RULES + HARBOUR)
        rules = ask(RULES + MOUNTAINS)[2]
        assert rules >= 10 * BLOCK
        ask(RULES + MOUNTAINS.replace("snow", "rain"))
        again, ledger, cached = ask(RULES + HARBOUR)
    assert again == first
    assert cached >= rules, "not from zero: from what others have used since"
    lost = [span["detail"] for span in ledger["spans"] if span["cause"] == "evicted"]
    named = [detail for detail in lost if "group" in detail]
    assert named
    assert {detail["window_tokens"] for detail in named} == {WINDOW}
    told = [one["text"] for one in ledger["story"]["findings"] if one["cause"] == "evicted"]
    assert told
    assert all("were evicted from the window group of 512" in text for text in told)
