"""An earlier turn that is sent otherwise than before: rewritten, cut, wrapped, without its thought.

The live turn (all behind the last answer) is the one an application dresses up; once it is history
it should be sent as it was. What was history already should never change at all.
"""

import re
from dataclasses import dataclass
from itertools import pairwise

from kvikk.audit.difference import first_difference, parsed
from kvikk.audit.prompt import Slot
from kvikk.audit.sketch import likeness, sketch
from kvikk.audit.turns import Remainder
from kvikk.audit.words import changed_text

_PLACEHOLDER = re.compile(
    r"\b(removed|pruned|truncated|omitted|cleared|elided|stripped|compacted|dropped|redacted|"
    r"summary|summari[sz]ed|condensed|shortened|no longer (shown|available)|old (tool )?(result|"
    r"output))\b",
    re.IGNORECASE,
)
_SUMMARY = re.compile(
    r"\b(summary|summari[sz]ed|compacted|conversation so far|earlier (messages|conversation|turns)|"
    r"previous conversation|continued from)\b",
    re.IGNORECASE,
)
_PICTURE = re.compile(r'"(?:data|url)":"([A-Za-z0-9+/=:;,]{64,})')
_SHORTER = 0.34
_NOTE_WEIGHT = 40.0
_SIMILAR = 0.5
_LONG = 200


@dataclass(frozen=True, slots=True)
class ChangedHistory:
    """The class, the place, and both pieces as sent."""

    cause: str
    path: str
    before: str
    after: str


def changed_history(rest: Remainder) -> ChangedHistory | None:
    """How history changed where two prompts begin to differ; None if it did not."""
    if rest.old.section != "messages" and rest.new.section != "messages":
        return _changed("context.injected_before_history", rest) if _is_pushed(rest) else None
    for look in (_thinking, _images, _cut, _pushed, _replaced, _redressed):
        if (found := look(rest)) is not None:
            return found
    return None


def _thinking(rest: Remainder) -> ChangedHistory | None:
    """Thoughts that an earlier answer was sent with are gone."""
    if rest.old.kind != "thinking" or rest.new.kind == "thinking":
        return None
    behind = next((slot for slot in rest.before if slot.kind != "thinking"), None)
    same_turn = behind is None or behind.role == rest.new.role or behind.kind == rest.new.kind
    return _changed("history.thinking_dropped", rest, rest.old.path) if same_turn else None


def _images(rest: Remainder) -> ChangedHistory | None:
    """An image of an earlier turn became another one, a text, or nothing."""
    old, new = rest.old, rest.new
    if "image" in (old.kind, new.kind) and (rest.goes_on or not rest.live):
        moved = new.piece.digest in {slot.piece.digest for slot in rest.before[1:]}
        if old.kind == "image" and (moved or new.message != old.message):
            return _changed("history.images_changed", rest, old.path)
        if old.kind == new.kind:
            return _changed("history.images_changed", rest, _deep(rest))
        if old.kind == "image" or rest.is_same_conversation or _same_message(rest):
            return _changed("history.images_changed", rest)
    if old.kind == new.kind == "tool_result" and _pictures(old) != _pictures(new):
        return _changed("history.images_changed", rest, _deep(rest))
    return None


def _cut(rest: Remainder) -> ChangedHistory | None:
    """Messages are gone: from the front, as a window does, or from the middle."""
    removed = rest.removed
    if not removed or any(slot.section != "messages" for slot in removed):
        return None
    if all(slot.kind == "image" for slot in removed):
        return _changed("history.images_changed", rest, rest.old.path)
    if all(slot.kind == "thinking" for slot in removed):
        return _changed("history.thinking_dropped", rest, rest.old.path)
    if rest.live:  # it dressed the live turn, and is not replayed
        return _changed("history.replay_differs", rest)
    whole = removed[0].starts_message
    first = _first_message(rest)
    if whole and rest.old.message is not None and rest.old.message <= first + 1:
        return _changed("history.trimmed_front", rest)
    return _changed("history.rewritten", rest)


def _pushed(rest: Remainder) -> ChangedHistory | None:
    """Something new stands in front of what was the history."""
    if not _is_pushed(rest):
        return None
    if all(slot.kind == "image" for slot in rest.inserted):
        return _changed("history.images_changed", rest)
    known = {slot.piece.digest for slot in rest.before}
    if all(slot.piece.digest in known for slot in rest.inserted):  # the same in another order
        return _changed("history.replay_differs", rest)
    return _changed("context.injected_before_history", rest)


def _is_pushed(rest: Remainder) -> bool:
    """Not so where a tail is only moved behind new turns, as reminders are."""
    inserted = rest.inserted
    if not inserted:
        return False
    return not (rest.live and any(slot.role == "assistant" for slot in inserted))


def _replaced(rest: Remainder) -> ChangedHistory | None:
    """A piece of history, sent before as such, is another one now."""
    old, new = rest.old, rest.new
    if old.section != "messages" or (rest.live and not rest.goes_on and old.kind == "text"):
        return None
    shorter = new.piece.weight <= _SHORTER * old.piece.weight
    was_sent = rest.goes_on or not rest.live or shorter
    if old.kind == new.kind == "tool_result" and old.message == new.message and was_sent:
        return _changed("history.rewritten", rest, _deep(rest))
    if old.kind == "tool_use" == new.kind and rest.goes_on and rest.is_same_conversation:
        return _changed("history.rewritten", rest, _deep(rest))
    if rest.live or old.kind != "text" or new.kind != "text":
        return _summarised(rest)
    if not (rest.is_same_conversation or _similar(old, new)):
        return _summarised(rest)
    if _PLACEHOLDER.search(new.piece.text[:400]) and not _PLACEHOLDER.search(old.piece.text[:400]):
        return _cut_with_a_note(rest)
    if changed_text(old.piece.text, new.piece.text).certain:
        return None  # a clock, an id: the class of the value says more
    if _contains(old.piece.text, new.piece.text):
        return _changed("history.replay_differs", rest)
    first = old.role != "assistant" and old.message == _first_message(rest)
    if first and not shorter and rest.is_same_conversation:
        return _changed("context.injected_before_history", rest)
    return _changed("history.rewritten", rest)


def _redressed(rest: Remainder) -> ChangedHistory | None:
    """The live turn, dressed up when it was sent, is history now and sent otherwise."""
    if not (rest.live and rest.goes_on) or rest.new.section != "messages":
        return None
    same_kind = rest.old.kind == rest.new.kind == "text" and rest.old.role == rest.new.role
    if same_kind and _similar(rest.old, rest.new):
        value = changed_text(rest.old.piece.text, rest.new.piece.text)
        if value.certain:
            return None
    was = _turn(rest.whole_before.slots, rest.old.message)
    now = _turn(rest.whole_after.slots, rest.old.message)
    if was and now and (_contains(was, now) or _in_common(was, now) >= _SIMILAR):
        same = [slot for slot in rest.whole_after.slots if slot.message == rest.old.message]
        place = rest.new if rest.new.message == rest.old.message else same[-1]
        return _changed("history.replay_differs", rest, place.path)
    return None


def _summarised(rest: Remainder) -> ChangedHistory | None:
    """Much history became a summary of it, and nothing else of it may be left."""
    early = rest.new.message is not None and rest.new.message <= _first_message(rest) + 2
    long = sum(slot.piece.weight for slot in rest.before) > 2 * rest.new.piece.weight
    if early and long and not rest.live and _SUMMARY.search(rest.new.piece.text[:400]):
        return _changed("history.rewritten", rest)
    return None


def _cut_with_a_note(rest: Remainder) -> ChangedHistory:
    """A short note in place of several messages is a cut; in place of one, a rewriting."""
    following = rest.after[1:2]
    later = {slot.piece.digest for slot in rest.before[2:]}
    skipped = bool(following) and following[0].piece.digest in later
    next_old = rest.before[1:2]
    if next_old and following and next_old[0].piece.digest == following[0].piece.digest:
        skipped = False
    first = rest.old.message is not None and rest.old.message <= _first_message(rest) + 1
    if skipped and first and rest.new.piece.weight <= _NOTE_WEIGHT:
        return _changed("history.trimmed_front", rest)
    return _changed("history.rewritten", rest)


def _changed(cause: str, rest: Remainder, path: str = "") -> ChangedHistory:
    return ChangedHistory(cause, path or rest.new.path, rest.old.piece.text, rest.new.piece.text)


def _deep(rest: Remainder) -> str:
    old, new = parsed(rest.old.piece.text), parsed(rest.new.piece.text)
    return first_difference(old, new, rest.new.path)


def _first_message(rest: Remainder) -> int:
    """The index of the first message that is no instruction."""
    return min(
        (
            slot.message
            for slot in rest.whole_before.slots
            if slot.section == "messages" and slot.message is not None
        ),
        default=0,
    )


def _turn(slots: tuple[Slot, ...], message: int | None) -> str:
    """The text of one message."""
    return "\n".join(slot.piece.text for slot in slots if slot.message == message)


def _same_message(rest: Remainder) -> bool:
    return rest.old.message == rest.new.message and not rest.new.starts_message


def _pictures(slot: Slot) -> list[str]:
    """The bytes of all pictures inside of a result, as sent."""
    return _PICTURE.findall(slot.piece.text)


def _similar(old: Slot, new: Slot) -> bool:
    return _contains(old.piece.text, new.piece.text) or (
        _in_common(old.piece.text, new.piece.text) >= _SIMILAR
    )


def _contains(one: str, other: str) -> bool:
    """Whether one text stands inside the other, whatever is wrapped around it."""
    shorter, longer = sorted(("".join(one.split()), "".join(other.split())), key=len)
    return len(shorter) >= 4 and shorter in longer


def _in_common(one: str, other: str) -> float:
    """From 0 to 1: how much of the shorter text the other has too, in runs of words or letters."""
    if min(len(one), len(other)) >= _LONG:
        return likeness(sketch(one), sketch(other))
    first, second = (set(pairwise(text.split())) for text in (one, other))
    return len(first & second) / max(1, min(len(first), len(second)))
