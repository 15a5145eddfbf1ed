"""Places in a body by JSON path: look one up, change it, take it away. Bodies are never shared."""

import re
from typing import Any

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


def steps(path: str) -> list[str | int]:
    """``$.messages[3].content`` as names and indices."""
    return [name or int(index) for name, index in _STEP.findall(path.removeprefix("$"))]


def get(body: Any, path: str) -> Any:
    """What is at ``path``; None where nothing is."""
    value = body
    for step in steps(path):
        value = _child(value, step)
    return value


def put(body: Any, path: str, value: Any) -> bool:
    """Set ``path`` in place, with objects on the way; whether it could be."""
    *way, last = steps(path)
    holder = body
    for step in way:
        inner = _child(holder, step)
        if inner is None and isinstance(step, str) and isinstance(holder, dict):
            inner = holder[step] = {}
        holder = inner
    if isinstance(last, str) and isinstance(holder, dict):
        holder[last] = value
        return True
    if isinstance(last, int) and isinstance(holder, list) and last < len(holder):
        holder[last] = value
        return True
    return False


def drop(body: Any, path: str) -> bool:
    """Take ``path`` away in place; whether it was there."""
    parent, last = parent_of(path), steps(path)[-1]
    holder = get(body, parent)
    if isinstance(last, str) and isinstance(holder, dict) and last in holder:
        del holder[last]
        return True
    if isinstance(last, int) and isinstance(holder, list) and last < len(holder):
        del holder[last]
        return True
    return False


def parent_of(path: str) -> str:
    """The path of what holds ``path``."""
    cut = max(path.rfind("."), path.rfind("["))
    return path[:cut] if cut > 0 else "$"


def _child(value: Any, step: str | int) -> Any:
    if isinstance(step, str):
        return value.get(step) if isinstance(value, dict) else None
    return value[step] if isinstance(value, list) and step < len(value) else None
