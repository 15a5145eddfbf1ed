"""Items of the Responses API, which a conversation is made of there."""

from collections.abc import Iterator

from kvikk.wire.conversation import Message, Role, Text
from kvikk.wire.reading import JsonValue
from kvikk.wire.tools import ToolCall

_ROLES: dict[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}
_TEXT_PARTS = ("input_text", "output_text", "text")


def read_input(value: JsonValue) -> tuple[Message, ...]:
    """A string, which is a user's message, or a list of items.

    What an assistant thought, said and called between two turns of others is one message.
    """
    if isinstance(value.value, str):
        return (Message("user", (Text(value.value, value.path),)),)
    if not isinstance(value.value, list):
        value.fail_type("a string or a list of items")
    messages: list[Message] = []
    for item in value.items():
        message = _read_item(item)
        if messages and messages[-1].role == message.role == "assistant":
            message = _join(messages.pop(), message)
        messages.append(message)
    return tuple(messages)


def _read_item(item: JsonValue) -> Message:
    kind = item.get("type")
    match "message" if kind.is_null else kind.string():
        case "message":
            return _read_message(item)
        case "function_call":
            call = ToolCall(
                item.get("call_id").string(),
                item.get("name").string(),
                item.get("arguments").string(),
            )
            return Message("assistant", tool_calls=(call,))
        case "function_call_output":
            texts = tuple(_read_texts(item.get("output")))
            return Message("tool", texts, tool_call_id=item.get("call_id").string())
        case "item_reference":
            kind.fail("items are not kept by themselves; send the item, or previous_response_id")
        case other if other != "reasoning":
            kind.fail(f"an item of type {other[:40]!r} is not supported here")
    return Message("assistant", reasoning=_read_thoughts(item))


def _read_message(item: JsonValue) -> Message:
    role = item.get("role")
    if role.string() not in _ROLES:
        role.fail(f"expected one of {', '.join(_ROLES)}")
    return Message(_ROLES[role.string()], tuple(_read_texts(item.get("content"))))


def _read_texts(value: JsonValue) -> Iterator[Text]:
    """A string, or a list of parts."""
    if isinstance(value.value, str):
        yield Text(value.value, value.path)
        return
    if not isinstance(value.value, list):
        value.fail_type("a string or a list of text parts")
    for part in value.items():
        kind = part.get("type")
        match kind.string():
            case known if known in _TEXT_PARTS:
                text = part.get("text")
            case "refusal":
                text = part.get("refusal")
            case "input_image":
                kind.fail("this model reads text only and cannot see an image")
            case other:
                kind.fail(f"a part of type {other[:40]!r} is not supported here")
        yield Text(text.string(), text.path)


def _read_thoughts(item: JsonValue) -> str | None:
    """What is readable of a reasoning item: its content, else its summary."""
    for name in ("content", "summary"):
        parts = item.get(name)
        if parts.value not in (None, []):
            return "\n".join(part.get("text").string() for part in parts.items())
    return None


def _join(first: Message, second: Message) -> Message:
    thoughts = [said for said in (first.reasoning, second.reasoning) if said is not None]
    return Message(
        "assistant",
        first.texts + second.texts,
        reasoning="\n".join(thoughts) if thoughts else None,
        tool_calls=first.tool_calls + second.tool_calls,
    )
