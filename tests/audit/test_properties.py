"""What holds for every log: parts add up, nothing is missed twice, a log has nothing on itself."""

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvikk.audit import comparison
from kvikk.audit.auditor import Auditor
from kvikk.audit.exchange import make_exchange
from kvikk.audit.run import audit_log
from kvikk.audit.window import Window
from tests.audit.cases import CASES, audit, load, log_lines
from tests.audit.talk import block, chat, messages, read, responses, sent, text, turns

_WORDS = st.sampled_from([text(name, size) for name in ("a", "b") for size in (3, 60, 700)])
_SAID = st.lists(_WORDS, min_size=1, max_size=5).filter(lambda said: len(said) % 2 == 1)
_FRONT = st.sampled_from(["", "It is 10:41:07. ", "It is 10:42:55. ", "Turn 3. ", "user: Ann. "])


@st.composite
def lines(draw: st.DrawFn) -> dict[str, Any]:
    """A request of some API with or without the provider's counts, which may be anything."""
    system, said = draw(_FRONT) + draw(_WORDS), draw(_SAID)
    match draw(st.sampled_from(["messages", "chat", "responses"])):
        case "messages":
            newest = turns(*said[:-1], [block(said[-1], marked=True)])
            line = messages(system, newest)
        case "chat":
            line = chat(system, said, model=draw(st.sampled_from(["gpt-4.1", "gpt-5.6-sol", "m"])))
        case _:
            line = responses(system, said, prompt_cache_key=draw(st.sampled_from(["a", "b"])))
    line = sent(line, draw(st.floats(0, 2000)), account=draw(st.sampled_from(["", "x", "y"])))
    if draw(st.booleans()):
        total = draw(st.integers(1, 5000))
        line = read(line, total, draw(st.integers(0, total)))
    return line


@settings(max_examples=150)
@given(st.lists(lines(), min_size=1, max_size=8))
def test_hits_and_causes_add_up_to_the_input_tokens(log: list[dict[str, Any]]) -> None:
    log.sort(key=lambda line: line["at_s"])
    results, _ = audit(log)
    for line, result in zip(log, results, strict=True):
        account = result.account
        assert all(tokens > 0 for tokens in account.parts.values())
        assert sum(account.parts.values()) == account.input_tokens
        assert account.missed_tokens == sum(one.missed_tokens for one in result.findings)
        assert account.counted == ("response" in line)
        usage = line.get("response", {}).get("usage", {})
        if line["api"] != "messages" and account.counted:
            assert account.input_tokens == usage.get("prompt_tokens", usage.get("input_tokens"))


@settings(max_examples=60)
@given(st.lists(lines(), min_size=1, max_size=5))
def test_a_log_played_twice_misses_no_text_the_second_time(log: list[dict[str, Any]]) -> None:
    for at, line in enumerate(log):
        line["at_s"], line["first_byte_s"] = 10.0 * at, 10.0 * at + 0.5
        line.pop("response", None)
    again = [{**line, "at_s": line["at_s"] + 60, "first_byte_s": line["at_s"] + 61} for line in log]
    results, _ = audit([*log, *again])
    for result in results[len(log) :]:
        causes = {finding.cause.partition(".")[0] for finding in result.findings}
        assert not causes & {"volatile_value", "context", "tools", "serialization", "history"}


def test_a_log_has_nothing_on_itself(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    cases = [line for file in sorted(CASES.glob("*.json"))[:12] for line in log_lines(load(file))]
    log.write_text("".join(json.dumps(line) + "\n" for line in cases))
    document = comparison.document(audit_log([log]), audit_log([log]))
    assert document["findings"] == []
    assert document["hit_rate_difference"] == 0
    assert all(one["difference"] == 0 for one in document["totals"].values())
    assert document["totals"]


def test_little_is_remembered_of_a_long_log() -> None:
    window = Window(most_requests=10, most_bytes=40_000)
    auditor = Auditor(window)
    for index in range(60):
        line = chat(text(f"s{index}", 900), [text("q", 20)])
        exchange = make_exchange(index, line["request"], provider="openai")
        assert exchange is not None
        auditor.feed(exchange)
        assert len(window) <= 10
        assert window.text_bytes <= 40_000 or len(window) == 1
    assert window.num_keys < 2_000
