"""An answer's bytes as the one object it would have been without streaming."""

import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import orjson

from kvikk.wire.segments_any import Api
from kvikk.wire.segments_json import elements, mapping


def read_answer(api: Api, encoding: str, content: bytes) -> dict[str, Any] | None:
    """The answer, put together from its events if it was streamed; None if it cannot be read.

    ``encoding`` is its Content-Encoding. A stream that was cut short is read as far as it came.
    """
    try:
        content = httpx.Response(
            200, headers={"content-encoding": encoding}, content=content
        ).content
    except (httpx.DecodingError, zlib.error):
        return None
    values = list(_values(content))
    if len(values) == 1 and not _is_event(values[0]):
        return values[0]
    match api:
        case "chat_completions":
            return _chat(values)
        case "messages":
            return _messages(values)
        case "responses":
            return _responses(values)
        case "generate_content":
            return _gemini(values)
        case _:
            return None  # Converse streams in a binary framing of its own


def _values(content: bytes) -> Iterator[dict[str, Any]]:
    """One JSON value, a list of them, or those of server-sent events."""
    try:
        whole = orjson.loads(content)
    except orjson.JSONDecodeError:
        for line in content.split(b"\n"):
            if line.startswith(b"data:"):
                try:
                    value = orjson.loads(line[5:])
                except orjson.JSONDecodeError:
                    continue  # [DONE], or the last event of a stream that was cut
                if isinstance(value, dict):
                    yield value
        return
    yield from (one for one in (whole if isinstance(whole, list) else [whole]) if mapping(one))


def _is_event(value: dict[str, Any]) -> bool:
    kind = str(value.get("type") or "")
    return value.get("object") == "chat.completion.chunk" or "." in kind or "_st" in kind


def _add(held: dict[str, Any], more: dict[str, Any]) -> None:
    """Texts go on; whatever else is known later is right."""
    for name, value in more.items():
        if (
            isinstance(value, str)
            and isinstance(held.get(name), str)
            and name not in ("id", "type")
        ):
            held[name] += value
        elif value is not None:
            held[name] = value


def _chat(events: list[dict[str, Any]]) -> dict[str, Any] | None:
    answer: dict[str, Any] = {}
    message: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        answer |= {name: value for name, value in event.items() if value and name != "choices"}
        for choice, _ in elements(event.get("choices"), ""):
            if mapping(choice).get("index"):
                continue  # of several answers the first stands for all
            delta = dict(mapping(mapping(choice).get("delta")))
            for call, _ in elements(delta.pop("tool_calls", None), ""):
                held = calls.setdefault(mapping(call).get("index", 0), {"function": {}})
                _add(held["function"], mapping(mapping(call).get("function")))
                held |= {name: call[name] for name in ("id", "type") if mapping(call).get(name)}
            delta.pop("role", None)
            _add(message, delta)
    if not answer:
        return None
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    answer["choices"] = [{"index": 0, "message": {"role": "assistant", "content": None} | message}]
    return answer | {"object": "chat.completion"}


def _messages(events: list[dict[str, Any]]) -> dict[str, Any] | None:
    answer: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    arguments: dict[int, str] = {}
    for event in events:
        index = event.get("index", 0)
        match event.get("type"):
            case "message_start":
                answer = dict(mapping(event.get("message")))
            case "content_block_start":
                blocks[index] = dict(mapping(event.get("content_block")))
            case "content_block_delta":
                delta = dict(mapping(event.get("delta")))
                arguments[index] = arguments.get(index, "") + str(delta.pop("partial_json", ""))
                delta.pop("type", None)
                _add(blocks.setdefault(index, {}), delta)
            case "message_delta":
                answer |= mapping(event.get("delta"))
                # Counts of a stream are cumulative; what it leaves out or empty stands as it was.
                told = mapping(event.get("usage"))
                usage = {name: value for name, value in told.items() if value is not None}
                answer["usage"] = {**mapping(answer.get("usage")), **usage}
    if not answer:
        return None
    for index, text in arguments.items():
        if text:
            try:
                blocks[index]["input"] = orjson.loads(text)
            except orjson.JSONDecodeError:
                blocks[index]["input"] = {}
    return answer | {"content": [blocks[index] for index in sorted(blocks)]}


def _responses(events: list[dict[str, Any]]) -> dict[str, Any] | None:
    whole = [event["response"] for event in events if mapping(event.get("response"))]
    return whole[-1] if whole else None


def _gemini(events: list[dict[str, Any]]) -> dict[str, Any] | None:
    answer: dict[str, Any] = {}
    parts: list[dict[str, Any]] = []
    for event in events:
        answer |= {name: value for name, value in event.items() if value is not None}
        candidate = next((one for one, _ in elements(event.get("candidates"), "")), None)
        content = mapping(mapping(candidate).get("content"))
        for part, _ in elements(content.get("parts"), ""):
            goes_on = parts and set(parts[-1]) == set(mapping(part)) == {"text"}
            if goes_on:
                parts[-1]["text"] += part["text"]
            else:
                parts.append(dict(mapping(part)))
    if parts:
        answer["candidates"] = [{"content": {"role": "model", "parts": parts}}]
    return answer or None
