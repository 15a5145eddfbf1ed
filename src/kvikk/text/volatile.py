"""What kind of value it is that differs between two prompts which are otherwise the same.

… the time is 14:31:58. You are …
… the time is 14:32:07. You are …        differing: 14:31:58 and 14:32:07, a time
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise


class ValueKind(StrEnum):
    """What a value looks like, in words that fit behind "a"."""

    TIME = "time"
    DATE = "date"
    UUID = "UUID"
    AGE = "relative time"
    COUNTER = "counter"
    PATH = "path"
    IDENTIFIER = "random identifier"
    USER_NAME = "user name"
    OTHER = "value"


@dataclass(frozen=True)
class Difference:
    """The whole words in which two texts differ: ``value`` in one, ``other`` in the other."""

    value: str
    other: str
    kind: ValueKind


_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d[T ])?\d{1,2}:\d\d(:\d\d(\.\d+)?)?\s?(Z|[+-]\d\d:?\d\d|[AaPp]\.?[Mm]\.?)?"
)
_CLOCK_WORD = re.compile(
    r"\d{1,2}\s?[ap]\.?m\.?|(early |late |mid-?)?(morning|noon|afternoon|evening|night|midnight)",
    re.IGNORECASE,
)
_UNIT = r"(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|weeks?|months?|years?)"
_COUNTED = rf"(an?|one|two|\d[\d.,]*)[\s-]?{_UNIT}(,?\s?(and\s)?\d+[\s-]?{_UNIT})*"
# "41 minutes ago", "3 days old", "yesterday": true for a moment only, like a clock.
_AGE = re.compile(
    rf"(about |almost |over |~)?{_COUNTED}\s(ago|old|left|remaining|later|earlier|elapsed|so far)\b"
    r"|(just now|moments ago|yesterday|today|tomorrow|last (week|month|year|night))\b"
    rf"|in {_COUNTED}\b",
    re.IGNORECASE,
)
_AGED_BEFORE = re.compile(
    r"\b(uptime|aged?|idle|elapsed|running|waiting|up|seen|online)( time)?( for| since)?\W{0,3}"
    r"(\d+\w{1,7}\s)*$",
    re.IGNORECASE,
)
_LENGTH = re.compile(rf"{_COUNTED}\b", re.IGNORECASE)
# Seconds, milliseconds or more since 1970, in any year of this century's first half.
_UNIX_TIME = re.compile(r"[12]\d{9}(\.\d+|\d{3}|\d{6}|\d{9})?")
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DATE = re.compile(
    rf"(\d{{4}}[-/.]\d\d?[-/.]\d\d?|\d\d?[-/.]\d\d?[-/.]\d{{2,4}}"
    rf"|{_MONTH}(\s\d\d?(st|nd|rd|th)?)?(,?\s\d{{4}})?|\d\d?\.?\s{_MONTH}(\s\d{{4}})?"
    r"|(mon|tues?|wed(nes)?|thu(rs)?|fri|sat(ur)?|sun)(day)?)",
    re.IGNORECASE,
)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_NUMBER = re.compile(r"[#№]?-?\d[\d,]*(\.\d+)?%?")
_PATH = re.compile(r"([A-Za-z]:)?[\w.~@+-]*([/\\][\w.~@+ -]*)+")
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(\.[\w-]+)+")
_NAME = re.compile(r"@?[^\W\d_][\w'-]*( [^\W\d_][\w'-]*){0,3}")
_NAMED_BEFORE = re.compile(
    r"\b(user|customer|client|name|hello|hi|dear|named?|assisting|speaking (to|with))"
    r"(\s*name|\s*id)?(\s+is)?\W{0,4}$",
    re.IGNORECASE,
)
# Letters, digits and what tokens and digests are joined with.
_IDENTIFIER = re.compile(r"[\w-]{5,}={0,2}")
# As much of the text behind a number as may say that it is an age.
_MOST_OF_AN_AGE = 40
_EDGES = " \t\r\n\"'`()[]{}<>,;|=*"


def difference(before: str, value: str, other: str, after: str) -> Difference:
    """What differs between ``before + value + after`` and ``before + other + after``.

    The two values are cut where tokens were; here they grow to whole words, of what stands around
    them on one line.
    """
    head = before[_last_edge(before) :]
    tail = after[: _first_edge(after)]
    ours, theirs = (f"{head}{one}{tail}".strip(_EDGES).rstrip(".!?:") for one in (value, other))
    lead = before[: len(before) - len(head)]
    rest = after[len(tail) :][:_MOST_OF_AN_AGE]
    if _is_age(f"{ours}{rest}", lead) and _is_age(f"{theirs}{rest}", lead):
        return Difference(ours, theirs, ValueKind.AGE)
    return Difference(ours, theirs, kind_of(ours, theirs, lead))


def kind_of(value: str, other: str, before: str = "") -> ValueKind:
    """The kind that both values are of, given the text in front of them."""

    def both(pattern: re.Pattern[str]) -> bool:
        return bool(pattern.fullmatch(value) and pattern.fullmatch(other))

    if both(_UUID):
        return ValueKind.UUID
    if both(_TIME) or both(_UNIX_TIME) or both(_CLOCK_WORD):
        return ValueKind.TIME
    if both(_DATE):
        return ValueKind.DATE
    if both(_NUMBER):
        return ValueKind.COUNTER
    if both(_EMAIL):
        return ValueKind.USER_NAME
    if both(_PATH):
        return ValueKind.PATH
    if both(_NAME) and _NAMED_BEFORE.search(before):
        return ValueKind.USER_NAME
    if both(_IDENTIFIER) and _is_random(value) and _is_random(other):
        return ValueKind.IDENTIFIER
    # A longer stretch may hold both a date and a time, or a time and words.
    for pattern, kind in (
        (_UUID, ValueKind.UUID),
        (_TIME, ValueKind.TIME),
        (_DATE, ValueKind.DATE),
    ):
        if pattern.search(value) and pattern.search(other) and len(value) <= 64:
            return kind
    return ValueKind.OTHER


def _is_age(text: str, before: str) -> bool:
    """Whether a text begins with how long ago something was, or how long it took."""
    return bool(_AGE.match(text) or (_AGED_BEFORE.search(before) and _LENGTH.match(text)))


def _is_random(text: str) -> bool:
    """Whether a word mixes letters and digits as no word of a language does."""
    changes = sum(a.isdigit() != b.isdigit() for a, b in pairwise(text))
    return changes >= 2 or (changes >= 1 and len(text) >= 8)


def _last_edge(text: str) -> int:
    """Where the last word of a text begins."""
    return max((text.rfind(edge) for edge in _EDGES), default=-1) + 1


def _first_edge(text: str) -> int:
    """Where the first word of a text ends."""
    places = [place for edge in _EDGES if (place := text.find(edge)) >= 0]
    return min(places, default=len(text))
