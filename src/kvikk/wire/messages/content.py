"""Content of Messages: blocks of text, thinking, calls of tools and their results."""

import json
from collections import Counter
from collections.abc import Iterator

from kvikk.wire.conversation import Message, Role, Text
from kvikk.wire.messages.markers import Markers
from kvikk.wire.reading import JsonValue
from kvikk.wire.tools import ToolCall

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}


def read_texts(value: JsonValue, markers: Markers) -> tuple[Text, ...]:
    """A string, or a list of text blocks: a system prompt, or what a tool answered."""
    if value.is_null:
        return ()
    if isinstance(value.value, str):
        return (Text(value.value, value.path),)
    if not isinstance(value.value, list):
        value.fail_type("a string or a list of text blocks")
    return tuple(_read_text(block, markers) for block in value.items())


def read_messages(value: JsonValue, markers: Markers) -> tuple[Message, ...]:
    """The conversation. Turns of the same speaker in a row become one, as the API does."""
    messages: list[Message] = []
    for item in value.items():
        for message in _read_message(item, markers):
            before = messages[-1] if messages else None
            if before is not None and before.role == message.role == "user":
                messages[-1] = Message("user", before.texts + message.texts)
            elif before is not None and before.role == message.role == "assistant":
                messages[-1] = _join(before, message)
            else:
                messages.append(message)
    if not messages:
        value.fail("is empty; at least one message is needed")
    calls = Counter(call.id for message in messages for call in message.tool_calls)
    for call_id, count in calls.most_common(1):
        if count > 1:
            value.fail(f"{count} tool_use blocks have the id {call_id[:80]!r}; each needs its own")
    return tuple(messages)


def _read_message(item: JsonValue, markers: Markers) -> Iterator[Message]:
    """One turn: results of tools are messages of their own, in their places."""
    role, content = item.get("role"), item.get("content")
    if role.string() not in _ROLES:
        role.fail(f"expected one of {', '.join(_ROLES)}")
    speaker = _ROLES[role.string()]
    if isinstance(content.value, str):
        yield Message(speaker, (Text(content.value, content.path),))
        return
    if not isinstance(content.value, list):
        content.fail_type("a string or a list of blocks")
    if speaker == "assistant":
        yield _read_assistant(content, markers)
        return
    texts: list[Text] = []
    for block in content.items():
        if speaker == "user" and block.get("type").string() == "tool_result":
            if texts:
                yield Message(speaker, tuple(texts))
                texts = []
            yield _read_result(block, markers)
        else:
            texts.append(_read_text(block, markers))
    if texts or not content.elements():
        yield Message(speaker, tuple(texts))


def _read_assistant(content: JsonValue, markers: Markers) -> Message:
    texts: list[Text] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for block in content.items():
        match block.get("type").string():
            case "thinking":
                _refuse_marker(block)
                thoughts.append(block.get("thinking").string())
            case "redacted_thinking":
                _refuse_marker(block)  # what it holds is for its maker's eyes
            case "tool_use":
                markers.read(block)
                arguments = json.dumps(block.get("input").members(), ensure_ascii=False)
                calls.append(
                    ToolCall(block.get("id").string(), block.get("name").string(), arguments)
                )
            case _:
                texts.append(_read_text(block, markers))
    reasoning = "\n".join(thoughts) if thoughts else None
    return Message("assistant", tuple(texts), reasoning=reasoning, tool_calls=tuple(calls))


def _read_result(block: JsonValue, markers: Markers) -> Message:
    markers.read(block)
    block.get("is_error").boolean(False)
    texts = read_texts(block.get("content"), markers)
    return Message("tool", texts, tool_call_id=block.get("tool_use_id").string())


def _read_text(block: JsonValue, markers: Markers) -> Text:
    """A text block, or a document that is plain text."""
    markers.read(block)
    kind = block.get("type")
    match kind.string():
        case "text":
            text = block.get("text")
        case "document" if block.get("source").get("type").value == "text":
            text = block.get("source").get("data")
        case "image" | "document" as seen:
            kind.fail(
                f"this model reads text only and cannot see an {seen}"
                if seen == "image"
                else "only documents whose source is text are supported"
            )
        case _:
            kind.fail(f"a block of type {kind.string()[:40]!r} is not supported here")
    return Text(text.string(), text.path)


def _refuse_marker(block: JsonValue) -> None:
    if not block.get("cache_control").is_null:
        block.get("cache_control").fail("cannot be set on thinking; set it on another block")


def _join(first: Message, second: Message) -> Message:
    thoughts = [said for said in (first.reasoning, second.reasoning) if said is not None]
    return Message(
        "assistant",
        first.texts + second.texts,
        reasoning="\n".join(thoughts) if thoughts else None,
        tool_calls=first.tool_calls + second.tool_calls,
    )
