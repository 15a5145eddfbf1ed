"""Where two prompts, two structures or two texts begin to differ, and whether only in form.

The bytes on the wire are compared first, the canonical form second: what is equal when sorted and
unequal as sent is a class of its own, which a comparison of sorted forms could not see.
"""

import json
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvikk.audit.prompt import Prompt, Slot

_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_IDS = ("id", "call_id", "tool_call_id", "tool_use_id", "toolUseId", "item_id", "tool_id")


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference of two prompts: piece ``index``, and a character of its text.

    ``index`` may lie behind the last piece of one of them: that one is the other's beginning.
    """

    index: int
    character: int


def divergence(before: Prompt, after: Prompt) -> Divergence:
    """Where ``after`` stops being equal to ``before``, on the bytes as sent."""
    low, high = 0, min(len(before.chain), len(after.chain))
    while low < high:  # chains are equal up to some piece and different from there on
        middle = (low + high) // 2
        if before.chain[middle] == after.chain[middle]:
            low = middle + 1
        else:
            high = middle
    if low == len(before.chain) or low == len(after.chain):
        return Divergence(low, 0)
    ours, theirs = after.slots[low], before.slots[low]
    if not same_place(theirs, ours):
        return Divergence(low, 0)
    return Divergence(low, common_prefix(theirs.piece.text, ours.piece.text))


def same_place(before: Slot, after: Slot) -> bool:
    """Whether two pieces differ in nothing but their text."""
    return (before.kind, before.role, before.starts_message) == (
        after.kind,
        after.role,
        after.starts_message,
    )


def common_prefix(one: str, other: str) -> int:
    """Characters that two texts begin with alike."""
    limit = min(len(one), len(other))
    if one[:limit] == other[:limit]:
        return limit
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_suffix(one: str, other: str, most: int) -> int:
    """Characters that two texts end with alike, ``most`` at most."""
    low, high = 0, min(most, len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[-middle:] == other[-middle:]:
            low = middle
        else:
            high = middle - 1
    return low


def first_difference(before: object, after: object, path: str) -> str:
    """The path of the first member, in the order of ``after``, in which two values differ.

    Members that only their order tells apart are a difference of the object that holds them.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in after.items():
            if name in before and before[name] != value:
                return first_difference(before[name], value, f"{path}.{name}")
            if name in before and list(_orders(before[name])) != list(_orders(value)):
                return first_difference(before[name], value, f"{path}.{name}")
            if name not in before:
                return f"{path}.{name}"
        gone = next((name for name in before if name not in after), None)
        return path if gone is None else f"{path}.{gone}"
    if isinstance(before, list) and isinstance(after, list):
        for index, (theirs, ours) in enumerate(zip(before, after, strict=False)):
            if theirs != ours or list(_orders(theirs)) != list(_orders(ours)):
                return first_difference(theirs, ours, f"{path}[{index}]")
        return f"{path}[{min(len(before), len(after))}]"
    return path


def parsed(text: str) -> Any:
    """The structure that a text is JSON of; None where it is none."""
    if text[:1] not in "{[":
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None


def canonical(value: object) -> str:
    """One text for all orders of keys; JSON inside of strings is opened too."""
    return json.dumps(_opened(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def without_ids(value: object) -> object:
    """The same structure with every id of a call blanked."""
    if isinstance(value, dict):
        return {
            name: "" if name in _IDS and isinstance(member, str) else without_ids(member)
            for name, member in value.items()
        }
    if isinstance(value, list):
        return [without_ids(member) for member in value]
    return value


def key_orders(value: object) -> list[tuple[str, ...]]:
    """The names of all objects inside, in their order; JSON inside of strings is opened too."""
    return list(_orders(_opened(value)))


def without_spaces(value: object) -> object:
    """The same with all white space taken out of every text, but not of names."""
    return _mapped(value, lambda text: "".join(text.split()))


def in_normal_form(value: object) -> object:
    """The same with every text in one Unicode normal form, and its escapes undone."""
    return _mapped(value, _normal)


def _mapped(value: object, change: Callable[[str], str]) -> object:
    if isinstance(value, dict):
        return {name: _mapped(member, change) for name, member in value.items()}
    if isinstance(value, list):
        return [_mapped(member, change) for member in value]
    return change(value) if isinstance(value, str) else value


def _normal(text: str) -> str:
    if "\\u" in text:
        text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return unicodedata.normalize("NFKC", text)


def _opened(value: object) -> object:
    if isinstance(value, dict):
        return {name: _opened(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_opened(member) for member in value]
    if isinstance(value, str):
        inner = parsed(value)
        return value if inner is None else _opened(inner)
    return value


def _orders(value: object) -> Any:
    """The names of all objects inside, in their order."""
    if isinstance(value, dict):
        yield tuple(value)
        for member in value.values():
            yield from _orders(member)
    elif isinstance(value, list):
        for member in value:
            yield from _orders(member)
