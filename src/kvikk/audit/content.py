"""Why two prompts differ where they begin to: the class, the place, what stood there and stands.

What comes before is the same; what comes after cannot be reused, however equal. A difference that
belongs to the work itself (another question at the end, another conversation) is no cause.
"""

from dataclasses import dataclass

from kvikk.audit.difference import Divergence
from kvikk.audit.forms import changed_form
from kvikk.audit.history import changed_history
from kvikk.audit.prompt import Prompt, Slot
from kvikk.audit.secrets import part
from kvikk.audit.tools import changed_tools
from kvikk.audit.turns import Remainder, remainder
from kvikk.audit.words import changed_text

# Text that follows a change is worth a word from so many tokens on.
_LEAST_AFTER = 24.0
_IN_FRONT = 24
_SHOWN = 400


@dataclass(frozen=True, slots=True)
class Content:
    """A change of content. ``before`` and ``after`` are what differs, as sent."""

    cause: str
    path: str
    before: str = ""
    after: str = ""
    character: int | None = None
    whole_piece: bool = False


def changed_content(
    before: Prompt, after: Prompt, place: Divergence, *, forced_tool: bool = False
) -> Content | None:
    """The class and place of the first difference; None where nothing should have been the same.

    ``forced_tool`` says that the request must call a certain tool: tools then stand for an answer's
    form.
    """
    if place.index >= len(before.slots) or place.index >= len(after.slots):
        return _tools_at_the_end(before, after, place, forced_tool)
    theirs, ours = before.slots[place.index], after.slots[place.index]
    if "tools" in (theirs.section, ours.section):
        return _tools(before, after, place, forced_tool)
    rest = remainder(before, after, place)
    if (form := changed_form(theirs, ours)) is not None:
        return Content(form.cause, form.path, *_around(theirs, ours, place), place.character)
    if (change := changed_history(rest)) is not None:
        return Content(change.cause, change.path, *_around(theirs, ours, place), place.character)
    return _text(theirs, ours, rest)


def _around(theirs: Slot, ours: Slot, place: Divergence) -> tuple[str, str]:
    """Both texts from a little in front of where they begin to differ."""
    start = max(0, place.character - _IN_FRONT)
    stop = start + _SHOWN
    return part(theirs.piece.text, start, stop), part(ours.piece.text, start, stop)


def _text(theirs: Slot, ours: Slot, rest: Remainder) -> Content | None:
    """A value inside a text, with fixed text behind it."""
    same_kind = ours.kind == theirs.kind and ours.role == theirs.role
    if not same_kind:
        return None
    if rest.equal_weight_after < _LEAST_AFTER and not rest.is_same_conversation:
        return None
    change = changed_text(theirs.piece.text, ours.piece.text)
    if not change.certain and not rest.is_fixed_after:
        return None
    inside = len(change.after) < len(ours.piece.text) / 2
    before = _shown(theirs, change.before, change.character)
    after = _shown(ours, change.after, change.character)
    return Content(change.cause, ours.path, before, after, change.character, not inside)


def _shown(slot: Slot, value: str, character: int) -> str:
    """``value``, which stands there, unless it is a secret or a part of one."""
    hidden = part(slot.piece.text, character, character + max(1, len(value)))
    return hidden if "[secret]" in hidden else value


def _tools(before: Prompt, after: Prompt, place: Divergence, forced_tool: bool) -> Content | None:
    change = changed_tools(before, after, place.index, forced=forced_tool)
    return (
        None if change is None else Content(change.cause, change.path, change.before, change.after)
    )


def _tools_at_the_end(
    before: Prompt, after: Prompt, place: Divergence, forced_tool: bool
) -> Content | None:
    """One prompt is the other's beginning: only tools at its end could be a change."""
    longer = before if len(before.slots) > len(after.slots) else after
    if place.index < len(longer.slots) and longer.slots[place.index].section == "tools":
        return _tools(before, after, place, forced_tool)
    return None
