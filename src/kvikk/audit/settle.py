"""Shares a request's tokens out: each one is a hit, has one cause, or is new.

tokens   0 ······ hit ············ shared ················· all of the prompt
         [ reused )[ cause of a   )[ equal to the sibling  )[ new )
                    [ common start )[ behind a change       )
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvikk.audit.content import Content
from kvikk.audit.difference import common_suffix, same_place
from kvikk.audit.missed import Cause, everything_changed, missed
from kvikk.audit.pair import Pair
from kvikk.audit.replayed import KEEPS_ANSWERS, changed_answer

_LEAST_BEHIND_A_VALUE = 16


@dataclass(frozen=True, slots=True)
class _Stretch:
    start: int
    stop: int


def causes(pair: Pair) -> Iterator[tuple[Cause, int]]:
    """Each cause with its tokens; no token is counted twice."""
    behind = _behind(pair)
    if (whole := everything_changed(pair)) is not None:
        tokens = max(0, pair.shared - pair.hit) + _length(behind)
        if tokens >= pair.slack:
            yield whole, tokens
            return
    covered = pair.hit
    for cause in missed(pair):
        stop = min(cause.stop, pair.shared)
        yield cause, max(0, stop - covered)
        covered = max(covered, stop)
    if pair.content is not None:
        yield from _content(pair, pair.content, covered, behind)
    elif (answer := _answer(pair)) is not None:
        yield answer, answer.stop - answer.start


def _content(
    pair: Pair, content: Content, covered: int, behind: list[_Stretch]
) -> Iterator[tuple[Cause, int]]:
    tokens = max(0, pair.shared - covered) + _length(behind)
    by_value = content.cause.startswith(("volatile_value.", "context."))
    if tokens < (_LEAST_BEHIND_A_VALUE if by_value else 1):
        return
    cause = Cause(
        content.cause, content.path, covered, pair.prompt.num_tokens, content.before, content.after
    )
    yield cause, tokens


def _behind(pair: Pair) -> list[_Stretch]:
    """Text behind the first difference that the earlier prompt has too, beyond what was read."""
    index = pair.place.index
    before, after = pair.earlier.prompt.slots, pair.prompt.slots
    theirs = {slot.piece.digest for slot in before[index:]}
    found = []
    start = pair.shared
    if index < len(after) and index < len(before):
        found.append(_inside(pair, index, start))
    for place in range(index, len(after)):
        if after[place].piece.digest in theirs:
            low, high = pair.prompt.start(place), pair.prompt.ends[place]
            found.append(_Stretch(pair.prompt.tokens_at(low), pair.prompt.tokens_at(high)))
    least = max(pair.hit, start)
    return [
        _Stretch(max(least, one.start), one.stop)
        for one in found
        if one.stop > max(least, one.start)
    ]


def _inside(pair: Pair, index: int, start: int) -> _Stretch:
    """Of the piece that changed, what is still the same; all of it where only its form is new."""
    old, new = pair.earlier.prompt.slots[index], pair.prompt.slots[index]
    stop = pair.prompt.tokens_at(pair.prompt.ends[index])
    cause = "" if pair.content is None else pair.content.cause
    if old.piece.digest == new.piece.digest:
        return _Stretch(stop, stop)
    if cause.startswith(("history.", "serialization.")) and cause != "history.trimmed_front":
        return _Stretch(start, stop)
    if not same_place(old, new) or not new.piece.text:
        return _Stretch(stop, stop)
    most = min(len(old.piece.text), len(new.piece.text)) - pair.place.character
    same = common_suffix(old.piece.text, new.piece.text, most)
    first = pair.prompt.at(index, len(new.piece.text) - same)
    return _Stretch(pair.prompt.tokens_at(first), stop)


def _answer(pair: Pair) -> Cause | None:
    """The answer to the earlier request, kept by the server and sent back otherwise."""
    ends_alike = pair.place.index == len(pair.earlier.prompt.slots)
    if not ends_alike or not pair.earlier.answer or pair.exchange.provider not in KEEPS_ANSWERS:
        return None
    changed = changed_answer(pair.earlier.answer, pair.prompt, pair.place.index)
    if changed is None or changed.stop <= pair.hit:
        return None
    return replace(changed, start=max(changed.start, pair.hit))


def _length(stretches: list[_Stretch]) -> int:
    return sum(one.stop - one.start for one in _disjoint(stretches))


def _disjoint(stretches: list[_Stretch]) -> Iterator[_Stretch]:
    reached = 0
    for one in sorted(stretches, key=lambda each: each.start):
        start = max(reached, one.start)
        if one.stop > start:
            yield _Stretch(start, one.stop)
            reached = one.stop
