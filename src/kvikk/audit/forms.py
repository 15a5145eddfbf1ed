"""Pieces that mean the same and are other bytes: orders of keys, spaces, normal forms, new ids."""

import re
from dataclasses import dataclass

from kvikk.audit.difference import (
    canonical,
    first_difference,
    in_normal_form,
    key_orders,
    parsed,
    without_ids,
    without_spaces,
)
from kvikk.audit.prompt import Slot

_WITH_IDS = ("tool_use", "tool_result", "thinking", "other")
_ARGUMENTS = re.compile(r"\.(arguments|input|args|partial_json)\b")


@dataclass(frozen=True, slots=True)
class ChangedForm:
    """The class and the place, as deep as it can be told."""

    cause: str
    path: str


def changed_form(before: Slot, after: Slot) -> ChangedForm | None:
    """The class of two pieces that are the same in all but form; None if they are not."""
    if (before.kind, before.role) != (after.kind, after.role):
        return None
    old, new = parsed(before.piece.text), parsed(after.piece.text)
    is_text = after.kind in ("text", "thinking") and old is None
    deep = after.path if is_text else first_difference(old, new, after.path)
    if after.kind in _WITH_IDS and old is not None and new is not None and _only_ids(old, new):
        return ChangedForm("history.ids_regenerated", deep)
    cause = form_of(before.piece.text, after.piece.text)
    in_arguments = _ARGUMENTS.search(deep.removeprefix(after.path)) is not None
    if cause == "serialization.key_order" and after.kind == "tool_use" and in_arguments:
        cause = "serialization.args_reordered"
    return (
        None if cause is None else ChangedForm(cause, after.path if after.kind == "text" else deep)
    )


def form_of(before: str, after: str) -> str | None:
    """The class of two texts that mean the same; None if they do not, or are equal."""
    if before == after:
        return None
    old, new = parsed(before), parsed(after)
    if old is None or new is None:
        old, new = before, after
    elif canonical(old) == canonical(new):
        if key_orders(old) != key_orders(new):
            return "serialization.key_order"
        spaces = "".join(before.split()) == "".join(after.split())
        return f"serialization.{'whitespace' if spaces else 'unicode'}"
    if canonical(without_spaces(old)) == canonical(without_spaces(new)):
        return "serialization.whitespace"
    if canonical(in_normal_form(old)) == canonical(in_normal_form(new)):
        return "serialization.unicode"
    return None


def _only_ids(old: object, new: object) -> bool:
    return canonical(old) != canonical(new) and canonical(without_ids(old)) == canonical(
        without_ids(new)
    )
