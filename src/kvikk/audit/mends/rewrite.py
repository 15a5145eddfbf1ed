"""The mend of each class, put into a request and into the one that it should have shared with.

What a machine can do is here: move a value, freeze a parameter, keep history as it was, set a
marker. What needs a person (a longer prompt, another split of a key, which model to keep) is not.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvikk.audit.exchange import Exchange
from kvikk.audit.mends import messages
from kvikk.audit.mends.paths import drop, get, put
from kvikk.audit.parameters import parameter_path
from kvikk.wire.segments_any import segments
from kvikk.wire.segments_json import elements

_TOOLS = ("$.tools", "$.functions", "$.toolConfig.tools")


@dataclass(frozen=True, slots=True)
class Mend:
    """What of a finding its mend needs."""

    cause: str
    location: str
    before: str
    after: str
    character: int | None
    common_end: str

    @classmethod
    def of(cls, finding: Mapping[str, Any]) -> "Mend":
        """From a finding as the document has it."""
        return cls(
            finding["cause"],
            finding["location"],
            finding["before"],
            finding["after"],
            finding["character"],
            finding["common_end"],
        )


def mended(exchange: Exchange, earlier: Exchange | None, mend: Mend) -> Exchange | None:
    """``exchange`` with the mend in it, as ``earlier`` has it already; None if that cannot be."""
    body = copy.deepcopy(exchange.body)
    changed = replace(exchange, body=body)
    match mend.cause.partition("."):
        case ("volatile_value", _, _) if _is_said(body, mend.location):
            if earlier is None or not _is_history(body, mend.location):
                return None
            done = messages.restore(body, earlier.body, mend.location, replaced=True)
            return changed if done else None
        case ("volatile_value", _, _):
            done = _move(body, mend.location, mend.character, mend.after)
            return changed if done and _alike(body, earlier, mend.location) else None
        case ("breakpoint", _, kind):
            return _mark(changed, kind, mend)
        case ("ttl", _, "expired"):
            return changed if _live_longer(body) else None
        case _ if earlier is None:
            return None
    return _as_before(changed, earlier, mend)


def mended_sibling(exchange: Exchange, mend: Mend) -> Exchange | None:
    """The earlier request with the same mend; None if it needs none."""
    body = copy.deepcopy(exchange.body)
    changed = replace(exchange, body=body)
    match mend.cause.partition("."):
        case ("volatile_value", _, _) if not _is_said(body, mend.location):
            return changed if _move(body, mend.location, mend.character, mend.before) else None
        case ("context", _, _) if messages.message_index(mend.location) is None:
            return changed if _move(body, mend.location, mend.character, mend.before) else None
        case ("breakpoint", _, kind):
            return _mark(changed, kind, mend)
        case ("ttl", _, "expired"):
            return changed if _live_longer(body) else None
        case ("routing", _, "key_missing" | "key_volatile"):
            body["prompt_cache_key"] = "one-key"
            return changed
    return None


def sorted_tools(exchange: Exchange) -> Exchange:
    """The exchange with its tools in the order of their names."""
    body = copy.deepcopy(exchange.body)
    lists = [get(body, path) for path in _TOOLS]
    lists += [get(tool, "$.functionDeclarations") for tool, _ in elements(body.get("tools"), "")]
    for tools in lists:
        if isinstance(tools, list):
            tools.sort(key=_tool_name)
    return replace(exchange, body=body)


def _tool_name(tool: Any) -> str:
    """A marker, which in Bedrock is a tool of its own, stays last."""
    names = [get(tool, path) for path in ("$.name", "$.function.name", "$.toolSpec.name", "$.type")]
    return next((name for name in names if isinstance(name, str)), "\uffff")


def _as_before(changed: Exchange, earlier: Exchange, mend: Mend) -> Exchange | None:
    """What is the same as in the earlier request from now on."""
    body, before = changed.body, earlier.body
    in_messages = messages.message_index(mend.location) is not None
    match mend.cause.partition("."):
        case ("params", _, _):
            done = _freeze(body, before, parameter_path(changed.api, mend.location))
        case ("tools", _, _):
            done = _freeze_tools(body, before)
        case ("serialization", _, _) if not in_messages:
            done = _freeze_tools(body, before) | _freeze(body, before, mend.location)
        case ("context", _, _) if in_messages:
            words = get(body, mend.location)
            done = messages.restore(body, before, mend.location, replaced=True)
            done = done and isinstance(words, str) and messages.append_to_newest(body, words)
        case ("context", _, _):
            done = _move(body, mend.location, mend.character, mend.after)
            done = done and _alike(body, before, mend.location)
        case ("history" | "serialization", _, kind):
            replaced = kind != "trimmed_front"
            done = messages.restore(body, before, mend.location, replaced=replaced)
        case ("routing", _, "key_missing" | "key_volatile"):
            body["prompt_cache_key"], done = "one-key", True
        case ("routing", _, "account_rotated" | "upstream_switched"):
            return replace(changed, account=earlier.account, host=earlier.host)
        case ("ttl", _, "tier_changed"):
            done = _same_lifetime(body, before)
        case ("concurrency", _, _):
            return _later(changed, earlier)
        case _:
            return None
    return changed if done else None


def _move(body: dict[str, Any], path: str, character: int | None, value: str) -> bool:
    """Take a value out of a text and write it behind the newest user message."""
    text = get(body, path)
    if not value:
        return True  # nothing stands here in this one
    if not isinstance(text, str):
        return False
    at = (
        character
        if character is not None and text.startswith(value, character)
        else text.find(value)
    )
    if at < 0:
        return False
    put(body, path, text[:at] + text[at + len(value) :])
    return messages.append_to_newest(body, value.strip())


def _is_said(body: dict[str, Any], path: str) -> bool:
    """Whether a place is in what was said, and in no instruction."""
    index = messages.message_index(path)
    if index is None:
        return False
    message = body[messages.list_name(body)][index]
    role = message.get("role", "user") if isinstance(message, dict) else ""
    return role not in ("system", "developer")


def _is_history(body: dict[str, Any], path: str) -> bool:
    """Whether a place is in a message behind which others follow."""
    index = messages.message_index(path)
    return index is not None and index < len(body[messages.list_name(body)]) - 1


def _alike(body: dict[str, Any], earlier: "Exchange | dict[str, Any] | None", path: str) -> bool:
    """What is left is what was left of the earlier one, and its turns are sent as they were."""
    before = earlier.body if isinstance(earlier, Exchange) else earlier
    if before is None:
        return True
    ours, theirs = get(body, path), get(before, path)
    if isinstance(ours, str) and isinstance(theirs, str) and ours.split() == theirs.split():
        put(body, path, theirs)
    messages.carry(body, before)
    return True


def _freeze(body: dict[str, Any], before: dict[str, Any], path: str) -> bool:
    """Let ``path`` be as it was, or not be there if it was not."""
    old = get(before, path)
    if old is None:
        return drop(body, path)
    return put(body, path, copy.deepcopy(old))


def _freeze_tools(body: dict[str, Any], before: dict[str, Any]) -> bool:
    paths = [path for path in _TOOLS if get(before, path) is not None]
    return sum(_freeze(body, before, path) for path in paths) > 0


def _mark(changed: Exchange, kind: str, mend: Mend) -> Exchange | None:
    body, api = changed.body, changed.api
    match kind:
        case "too_many" | "ttl_order":
            return replace(changed, status=200) if drop(body, mend.location) else None
        case "dropped_by_gateway":
            return replace(changed, upstream=None)
        case "missing" if mend.location.startswith("$.prompt_cache_options"):
            return changed if drop(body, mend.location) else None
        case "missing":
            place = mend.location.removesuffix(".cache_control")
            return changed if messages.set_marker(body, api, place) else None
        case "on_volatile_block" | "placement" | "lookback_overflow" if _has_markers(changed):
            if kind == "on_volatile_block":
                messages.clear_marker(body, mend.location)
            done = messages.set_marker(body, api, mend.common_end) if mend.common_end else False
            return changed if done else None
        case "placement":
            # Only instructions end where a later request looks, whatever follows them.
            done = messages.split(body, mend.location, mend.character or 0, "developer")
            return changed if done else None
        case "implicit_boundary_moved":
            messages.split(body, mend.location, mend.character or 0)
            return changed
        case _:
            return None


def _has_markers(exchange: Exchange) -> bool:
    return any(segment.marker is not None for segment in segments(exchange.api, exchange.body))


def _live_longer(body: dict[str, Any]) -> bool:
    """Ask for the longer of the lifetimes wherever one is asked for."""
    controls = list(_controls(body))
    if controls and all(control.get("ttl") == "1h" for control in controls):
        return False  # there is none longer
    for control in controls:
        control["ttl"] = "1h"
    model = str(body.get("model") or "")
    if not controls and model.startswith("gpt"):
        if model.startswith(("gpt-5.6", "gpt-6")):
            body.setdefault("prompt_cache_options", {})["ttl"] = "12h"
        else:
            body["prompt_cache_retention"] = "24h"
        return True
    return bool(controls)


def _same_lifetime(body: dict[str, Any], before: dict[str, Any]) -> bool:
    asked = next((control.get("ttl") for control in _controls(before)), None)
    controls = list(_controls(body))
    for control in controls:
        control.pop("ttl", None)
        if asked:
            control["ttl"] = asked
    for path in ("$.prompt_cache_retention", "$.prompt_cache_options.ttl"):
        _freeze(body, before, path)
    return True


def _controls(value: Any) -> Any:
    """All markers inside of a body."""
    if isinstance(value, dict):
        for name in ("cache_control", "cachePoint"):
            if isinstance(value.get(name), dict):
                yield value[name]
        for member in value.values():
            yield from _controls(member)
    elif isinstance(value, list):
        for member in value:
            yield from _controls(member)


def _later(changed: Exchange, earlier: Exchange) -> Exchange | None:
    """Begin only when the earlier response has."""
    if changed.at_s is None or earlier.at_s is None:
        return None
    began = earlier.first_byte_s if earlier.first_byte_s is not None else earlier.at_s + 1.0
    began = began if began >= earlier.at_s else earlier.at_s + began
    wait_s = max(0.0, began + 0.01 - changed.at_s)
    first = changed.first_byte_s
    later = None if first is None else first + (wait_s if first >= changed.at_s else 0.0)
    return replace(changed, at_s=changed.at_s + wait_s, first_byte_s=later)
