"""Logs as people have them, and as they should not be: all read, nothing fatal, no secret."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kvikk.audit.findings import excerpt
from kvikk.audit.readers.lines import MOST_LINE_BYTES
from kvikk.audit.readers.log import LogReader
from kvikk.audit.run import AuditedLog, audit_log
from kvikk.errors import RequestError
from tests.audit.talk import chat, messages, read, sent, text

RULES = text("rules", 2500)


def pair(provider: str = "") -> list[dict[str, Any]]:
    """Two lines of our own of which the second misses for a clock."""
    bodies = [chat(f"It is 10:4{at}:07. {RULES}", ["Hello"]) for at in (1, 2)]
    return [read(sent(body, 100.0 + 20 * at), 2500, 0) for at, body in enumerate(bodies)]


def write(file: Path, *records: Any) -> Path:
    """A log of these records, a line each."""
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


def causes(audited: AuditedLog) -> list[str]:
    """Classes of all findings, in the log's order."""
    return [finding["cause"] for finding in audited.totals.findings()]


CLOCK = "volatile_value.timestamp"


def test_bare_bodies_are_audited_by_the_rules_alone(tmp_path: Path) -> None:
    log = write(tmp_path / "log", *(line["request"] for line in pair()))
    audited = audit_log([log])
    assert causes(audited) == [CLOCK]
    assert audited.totals.uncounted == 2


def litellm(line: dict[str, Any], at: int) -> dict[str, Any]:
    """A line as LiteLLM's standard payload has it."""
    body = line["request"]
    return {
        "id": f"chatcmpl-{at}",
        "call_type": "acompletion",
        "status": "success",
        "model": body["model"],
        "custom_llm_provider": "openai",
        "model_id": "deployment-1",
        "api_base": "https://api.example/v1",
        "messages": body["messages"],
        "model_parameters": {"temperature": 1, "api_key": "sk-proj-abcdefghijklmnop"},
        "startTime": 1764460800.0 + 20 * at,
        "completionStartTime": 1764460801.0 + 20 * at,
        "endTime": 1764460802.0 + 20 * at,
        "response": line["response"],
        "metadata": {
            "user_api_key_hash": "88dc28d0f030c55ed4ab77ed8faf098196cb1c05df778539800c9f1243fe6b4b"
        },
    }


def test_litellms_payloads_are_read(tmp_path: Path) -> None:
    log = write(tmp_path / "log", *(litellm(line, at) for at, line in enumerate(pair())))
    audited = audit_log([log])
    assert causes(audited) == [CLOCK]
    assert audited.totals.input_tokens == 5000


def test_rows_of_litellms_spend_table_are_read(tmp_path: Path) -> None:
    rows = []
    for at, line in enumerate(pair()):
        rows.append(
            {
                "request_id": str(at),
                "call_type": "acompletion",
                "startTime": f"2026-11-30T09:15:{20 + at}.123000",
                "model": "gpt-4.1",
                "custom_llm_provider": "openai",
                "messages": "{}",
                "proxy_server_request": json.dumps(line["request"]),
                "response": json.dumps(line["response"]),
            }
        )
    assert causes(audit_log([write(tmp_path / "log", *rows)])) == [CLOCK]


def transcript(*said: tuple[str, Any, dict[str, int] | None]) -> list[dict[str, Any]]:
    """Records of Claude Code: who, what, and an answer's counts."""
    records = [{"type": "summary", "summary": "A talk", "leafUuid": "u9"}]
    for at, (role, content, usage) in enumerate(said):
        message = {"role": role, "content": content}
        if usage is not None:
            message |= {"id": f"msg_{at}", "model": "claude-opus-5", "usage": usage}
        records.append(
            {
                "type": role,
                "uuid": f"u{at}",
                "parentUuid": f"u{at - 1}" if at else None,
                "sessionId": "s1",
                "timestamp": f"2026-11-30T09:1{at}:00.000Z",
                "message": message,
            }
        )
    return records


def counts(plain: int, cached: int, written: int) -> dict[str, int]:
    return {
        "input_tokens": plain,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": written,
        "output_tokens": 5,
    }


def test_a_transcript_of_claude_code_becomes_its_requests(tmp_path: Path) -> None:
    long = text("file", 900)
    records = transcript(
        ("user", "Read it", None),
        ("assistant", [{"type": "text", "text": "Reading."}], counts(3, 0, 20_000)),
        ("user", long, None),
        ("assistant", [{"type": "text", "text": "Done."}], counts(3, 20_000, 1000)),
        ("user", "Thanks", None),
        ("assistant", [{"type": "text", "text": "Gladly."}], counts(3, 0, 21_020)),
    )
    reader = LogReader([write(tmp_path / "log", *records)], lambda _: None)
    exchanges = list(reader)
    assert [len(exchange.body["messages"]) for exchange in exchanges] == [1, 3, 5]
    assert reader.counts.other == 4
    assert exchanges[1].at_s is not None
    audited = audit_log([tmp_path / "log"])
    assert causes(audited) == ["provider.unexplained"]


def test_a_line_of_our_own_server_with_text_is_read(tmp_path: Path) -> None:
    lines = [
        {
            "id": f"req-{at}",
            "model": "smollm2",
            "tenant": "a",
            "at": 1764460800.0 + at,
            "prompt_tokens": 2600,
            "block_keys": [],
            "text": f"<|im_start|>system\nIt is 10:4{at}:07. {RULES}",
            "spans": [{"start": 0, "stop": 2600, "cause": "moved" if at else "new", "detail": {}}],
        }
        for at in range(2)
    ]
    audited = audit_log([write(tmp_path / "log", *lines)])
    [finding] = audited.totals.findings()
    assert (finding["cause"], finding["location"]) == (CLOCK, "$.input")


def test_forms_may_be_mixed_and_files_packed(tmp_path: Path) -> None:
    first, second = pair()
    packed = tmp_path / "log.gz"
    mixed = [first, second["request"], litellm(first, 3), {"level": "info"}]
    packed.write_bytes(gzip.compress("\n".join(map(json.dumps, mixed)).encode()))
    audited = audit_log([packed])
    assert audited.totals.requests == 3
    assert (audited.counts.other, audited.counts.broken) == (1, 0)


def test_a_list_over_many_lines_is_a_log_too(tmp_path: Path) -> None:
    log = tmp_path / "log.json"
    log.write_text(json.dumps(pair(), indent=1))
    assert causes(audit_log([log])) == [CLOCK]


def test_broken_lines_are_counted_and_told(tmp_path: Path) -> None:
    first, second = (json.dumps(line).encode() for line in pair())
    wrong = json.dumps(chat("caf\u00e9", ["Hello"])).encode().replace(b"\\u00e9", b"\xe9")
    log = tmp_path / "log"
    log.write_bytes(
        b"\n".join([first, b'{"request": {', b"\xff\xfe\x00", second, wrong, b"", b"7"])
    )
    audited = audit_log([log])
    assert causes(audited) == [CLOCK]
    assert (audited.totals.requests, audited.counts.broken, audited.counts.other) == (3, 3, 1)
    assert audited.counts.examples[0].startswith("log line 2: ")
    assert "not UTF-8" in audited.counts.examples[2]


def test_a_packed_file_that_ends_in_the_middle_is_read_up_to_there(tmp_path: Path) -> None:
    whole = gzip.compress("\n".join(map(json.dumps, pair() * 200)).encode())
    log = tmp_path / "log.gz"
    log.write_bytes(whole[: len(whole) // 2])
    audited = audit_log([log])
    assert audited.totals.requests > 1
    assert audited.counts.broken >= 1


def test_a_line_of_fifty_megabytes_is_read(tmp_path: Path) -> None:
    assert MOST_LINE_BYTES > 50 << 20
    long = {
        "request": {"model": "m", "messages": [{"role": "user", "content": "x y " * (13 << 20)}]}
    }
    audited = audit_log([write(tmp_path / "log", long, *pair())])
    assert audited.totals.requests == 3
    assert CLOCK in causes(audited)


def test_an_empty_log_has_no_requests(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    assert audit_log([log]).totals.requests == 0


@pytest.mark.parametrize("content", ["hello\nworld\n", '{"a": 1}\n', "[]\n"])
def test_a_file_without_any_request_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    log = tmp_path / "log"
    log.write_text(content)
    with pytest.raises(RequestError, match="no request in"):
        audit_log([log])


def test_a_file_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(RequestError, match="cannot be read"):
            audit_log([path])


def test_odd_bodies_are_no_reason_to_stop(tmp_path: Path) -> None:
    odd: list[Any] = [
        {"request": {"messages": None}},
        {"request": {"messages": [None, 7, {"role": 3, "content": {"a": 1}}], "tools": "x"}},
        {"request": {"model": 5, "input": [[], {"type": None, "content": [None]}], "tools": [1]}},
        {
            "request": {"contents": [{"parts": [None, {"text": 4}]}]},
            "response": {"usageMetadata": 1},
        },
        {
            "request": {"messages": [], "system": [None]},
            "response": {"usage": {"input_tokens": -4}},
        },
        {"request": {"model": "claude-opus-5", "messages": [{"content": [{"cache_control": 5}]}]}},
        {
            "request": {"messages": [{"role": "user", "content": "x"}]},
            "at_s": "soon",
            "status": "ok",
        },
        {"request": {"messages": [{"role": "user", "content": "\ud800"}], "n": 2**70}},
    ]
    audited = audit_log([write(tmp_path / "log", *odd, *odd)])
    assert audited.totals.requests + audited.counts.other == 16 - audited.counts.broken


def test_headers_and_keys_leave_no_trace(tmp_path: Path) -> None:
    key = "sk-ant-api03-verysecretverysecret"
    lines = [
        {**line, "headers": {"authorization": f"Bearer {key}"}, "response_headers": {"x": key}}
        for line in pair()
    ]
    for line, other in zip(lines, ("1", "2"), strict=True):
        line["request"]["messages"][0]["content"] = f"Use {key}{other} here. {RULES}"
    audited = audit_log([write(tmp_path / "log", *lines)], accounts=True)
    said = json.dumps([*audited.totals.findings(), *audited.totals.accounts()])
    assert "verysecret" not in said
    assert "[secret]" in said


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-0123456789abcdef",
        "Bearer abc.def-ghi",
        "password: hunter22",
        "AKIAIOSFODNN7EXAMPLE",
    ],
)
def test_an_excerpt_shows_no_secret(secret: str) -> None:
    assert secret not in excerpt(f"before {secret} after")


def test_a_message_in_anthropics_words_keeps_its_api(tmp_path: Path) -> None:
    line = messages(RULES, ["Hello"])
    [exchange] = LogReader([write(tmp_path / "log", line["request"])], lambda _: None)
    assert (exchange.api, exchange.provider) == ("messages", "anthropic")
