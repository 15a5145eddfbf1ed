"""The list of messages in a body of any API: the newest text, markers, and earlier turns again."""

import copy
import json
from typing import Any

from kvikk.audit.mends.paths import drop, get, parent_of, put, steps
from kvikk.wire.segments_any import Api

_LISTS = ("messages", "input", "contents")
_MARKERS = ("cache_control", "prompt_cache_breakpoint", "cachePoint")


def list_name(body: dict[str, Any]) -> str:
    """What the list of messages is called; "" where there is none."""
    return next((name for name in _LISTS if isinstance(body.get(name), list)), "")


def message_index(path: str) -> int | None:
    """The message that a path is in."""
    found = steps(path)
    if len(found) > 1 and found[0] in _LISTS and isinstance(found[1], int):
        return found[1]
    return None


def append_to_newest(body: dict[str, Any], words: str) -> bool:
    """Write ``words`` behind the text of the newest user message; whether there is one."""
    name = list_name(body)
    for index in range(len(body.get(name, [])) - 1, -1, -1):
        message = body[name][index]
        if not isinstance(message, dict) or message.get("role", "user") != "user":
            continue
        for member in ("content", "parts"):
            content = message.get(member)
            if isinstance(content, str):
                message[member] = f"{content}\n\n{words}"
                return True
            for block in reversed(content if isinstance(content, list) else []):
                if isinstance(block, dict) and isinstance(block.get("text"), str):
                    block["text"] = f"{block['text']}\n\n{words}"
                    return True
    return False


def restore(body: dict[str, Any], earlier: dict[str, Any], path: str, *, replaced: bool) -> bool:
    """Begin with the messages of ``earlier`` as they were, and go on with what is new.

    ``replaced`` says that the message at ``path`` took the place of an earlier one.
    """
    name = list_name(body)
    if not name or list_name(earlier) != name:
        return False
    known = {_plain(message) for message in earlier[name]}
    ours = body[name]
    same = [index for index, message in enumerate(ours) if _plain(message) in known]
    at = message_index(path)
    if replaced and at is not None:
        same.append(at)
    if not same:
        return False
    old = [_unmarked(copy.deepcopy(message)) for message in earlier[name]]
    body[name] = [*old, *ours[max(same) + 1 :]]
    return True


def set_marker(body: dict[str, Any], api: Api, path: str, ttl: str = "") -> bool:
    """Set a marker on the piece at ``path``; whether it could be."""
    block = parent_of(path) if path.endswith(".text") else path
    value = get(body, block)
    if api == "converse":
        holder, place = get(body, parent_of(block)), steps(block)[-1]
        if isinstance(holder, list) and isinstance(place, int):
            holder.insert(place + 1, {"cachePoint": {"type": "default"}})
            return True
        return False
    control = {"type": "ephemeral", **({"ttl": ttl} if ttl else {})}
    if isinstance(value, str):
        marked = {"type": "text", "text": value, "cache_control": control}
        return put(body, block, [marked])
    if isinstance(value, dict):
        value["cache_control"] = control
        return True
    return False


def clear_marker(body: dict[str, Any], path: str) -> bool:
    """Take the marker of the piece at ``path`` away."""
    block = parent_of(path) if path.endswith(".text") else path
    return sum(drop(body, f"{block}.{name}") for name in _MARKERS) > 0


def carry(body: dict[str, Any], earlier: dict[str, Any]) -> None:
    """Send back what was written behind earlier turns, as it was sent then."""
    name = list_name(body)
    if not name or list_name(earlier) != name:
        return
    for index, (ours, theirs) in enumerate(zip(body[name], earlier[name], strict=False)):
        words, said = _words(ours), _words(theirs)
        if words is not None and said is not None and said.startswith(f"{words}\n\n"):
            body[name][index] = _unmarked(copy.deepcopy(theirs))


def split(body: dict[str, Any], path: str, character: int, role: str = "") -> bool:
    """Make two messages of the one at ``path``, cut at a character of its text or between parts.

    The first one gets ``role``, if one is given.
    """
    name, index, words = list_name(body), message_index(path), get(body, path)
    if index is None or not isinstance(body[name][index], dict):
        return False
    message = body[name][index]
    content, place = message.get("content"), steps(path)
    head: Any
    tail: Any
    if isinstance(content, list) and len(place) > 3 and isinstance(place[3], int) and place[3]:
        head, tail = content[: place[3]], content[place[3] :]
    elif isinstance(words, str) and content == words and 0 < character < len(words):
        head, tail = words[:character], words[character:]
    else:
        return False
    first = {**message, "content": head, **({"role": role} if role else {})}
    body[name][index : index + 1] = [first, {**message, "content": tail}]
    return True


def _words(message: Any) -> str | None:
    """The last text of a message."""
    if not isinstance(message, dict):
        return None
    content = message.get("content", message.get("parts"))
    if isinstance(content, str):
        return content
    texts = [block.get("text") for block in content or () if isinstance(block, dict)]
    return next((text for text in reversed(texts) if isinstance(text, str)), None)


def _plain(message: Any) -> str:
    """A message without its markers; a string is one text block."""
    if isinstance(message, dict) and isinstance(message.get("content"), str):
        message = {**message, "content": [{"type": "text", "text": message["content"]}]}
    return json.dumps(_unmarked(copy.deepcopy(message)), sort_keys=True)


def _unmarked(message: Any) -> Any:
    """The same without markers, in place."""
    if isinstance(message, dict):
        for name in _MARKERS:
            message.pop(name, None)
        content = message.get("content")
        if isinstance(content, list):
            kept = [_unmarked(block) for block in content]
            message["content"] = [block for block in kept if block != {}]
    return message
