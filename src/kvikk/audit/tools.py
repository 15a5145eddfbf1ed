"""What became of a list of tools: another order, another set, another definition, another form."""

from dataclasses import dataclass

from kvikk.audit.difference import canonical, first_difference, parsed
from kvikk.audit.forms import form_of
from kvikk.audit.prompt import Prompt, Slot
from kvikk.audit.words import changed_text
from kvikk.wire.segments_json import mapping


@dataclass(frozen=True, slots=True)
class ChangedTools:
    """The class, the place, and both tools as sent."""

    cause: str
    path: str
    before: str
    after: str


def changed_tools(
    before: Prompt, after: Prompt, index: int, *, forced: bool = False
) -> ChangedTools | None:
    """How the tools of two prompts differ, that begin to differ at piece ``index``."""
    theirs, ours = _tools(before), _tools(after)
    if not theirs and not ours:
        return None
    slot = after.slots[index] if index < len(after.slots) else None
    other = before.slots[index] if index < len(before.slots) else None
    path = _place(slot, other)
    sent, was = _text(slot), _text(other)
    old_forms = [canonical(parsed(tool.piece.text)) for tool in theirs]
    new_forms = [canonical(parsed(tool.piece.text)) for tool in ours]
    if sorted(old_forms) == sorted(new_forms):
        if old_forms != new_forms:
            return ChangedTools("tools.order", path, _name(other), _name(slot))
        form = form_of(was, sent)
        deep = first_difference(parsed(was), parsed(sent), path)
        return ChangedTools(form or "serialization.key_order", deep, was, sent)
    old_names = [_name(tool) for tool in theirs]
    new_names = [_name(tool) for tool in ours]
    if sorted(old_names) != sorted(new_names):
        replaced = len(theirs) == len(ours) and (forced or len(ours) == 1)
        cause = "tools.definition" if replaced else "tools.set"
        return ChangedTools(cause, path, was, sent)
    if old_names != new_names and _name(slot) != _name(other):
        return ChangedTools("tools.order", path, _name(other), _name(slot))
    return _redefined(was, sent, path)


def _redefined(was: str, sent: str, path: str) -> ChangedTools:
    """One tool changed: by a value that is never the same, or as such."""
    form = form_of(was, sent)
    old, new = parsed(was), parsed(sent)
    deep = first_difference(old, new, path)
    if form is not None:
        return ChangedTools(form, deep, was, sent)
    value = changed_text(was, sent)
    if value.certain and value.cause != "volatile_value.counter" and _is_prose(deep):
        return ChangedTools(value.cause, deep, value.before, value.after)
    return ChangedTools("tools.definition", deep, was, sent)


def _is_prose(path: str) -> bool:
    return path.endswith((".description", ".title", ".examples", ".enum"))


def _tools(prompt: Prompt) -> list[Slot]:
    return [slot for slot in prompt.slots if slot.section == "tools"]


def _name(slot: Slot | None) -> str:
    """What a tool is called, in any API's words."""
    if slot is None or slot.section != "tools":
        return ""
    tool = mapping(parsed(slot.piece.text))
    for inner in (tool, mapping(tool.get("function")), mapping(tool.get("toolSpec"))):
        if isinstance(inner.get("name"), str):
            return str(inner["name"])
    # One that the provider brings has no name but its kind.
    return str(tool.get("server_label") or tool.get("type") or next(iter(tool), ""))


def _place(slot: Slot | None, other: Slot | None) -> str:
    """The tool that is new at this place; where none is, the one that was."""
    if slot is not None and slot.section == "tools":
        return slot.path
    return other.path if other is not None else "$.tools"


def _text(slot: Slot | None) -> str:
    return slot.piece.text if slot is not None and slot.section == "tools" else ""
