"""Which class a changed stretch of text is: a clock, an age, an id, a person, or fresh context."""

import re
from dataclasses import dataclass
from difflib import SequenceMatcher

from kvikk.audit.difference import common_prefix, common_suffix
from kvikk.text.volatile import Difference, ValueKind, difference

_MOST_WORDS = 400
_AROUND = 240
_FREE_TEXT_WORDS = 4
# What stands around a value and is none of it.
_EDGES = "=\"'`()[]{}<>,;|\\"
_WORD = re.compile(r"\s+|[^\s]+")

_NONCE = re.compile(
    r"(nonce|salt|seed|random|checksum|\bsum|hash|digest|sig(nature)?|cache.?bust\w*|etag|\bv)"
    r"\W{0,3}$",
    re.IGNORECASE,
)
_IDENTIFIED = re.compile(
    r"(\bid|\w_id|-id|\bids|\w+Id|session|conversation|thread|request|trace|run|ticket|order|case|"
    r"chat|message|task|job|uuid|guid|key|number|no\.?|ref(erence)?)\W{0,4}$",
    re.IGNORECASE,
)
_PERSON = re.compile(
    r"(user|username|customer|client|caller|patient|student|employee|agent|name|email|e-mail|"
    r"(signed|logged) in as|on behalf of|assist(s|ing)?|help(s|ing)?|for|account|tenant|owner|"
    r"author|role|speaking (to|with)|talking (to|with)|hello|hi|dear)"
    r"(\s*name|\s*id)?(\s+is)?\W{0,4}$",
    re.IGNORECASE,
)
_FILES = re.compile(
    r"(\bcwd|git ?status|work(ing)? ?(dir|tree|space)\w*|director(y|ies)|\bbranch|\bgit\b|"
    r"\bcommits?\b|\bHEAD\b|\brepo(sitory)?\b|\bfile(s| tree| list)?\b|open tabs|cursor|selection|"
    r"folder|\bpath\b|project root|<env>)[^\n]*(\n[^\n]{0,80}){0,3}$",
    re.IGNORECASE,
)
# A line as git tells the state of a file: two letters and its name.
_STATE = re.compile(r"^\s*[MADRCU?! ]{1,2} \S+[./]\S*$", re.MULTILINE)
_COUNTING = re.compile(
    r"(turn|step|iteration|attempt|try|round|count(er)?|page|version|rev(ision)?|line|row|index|"
    r"tokens?|budget|remaining|left|used|total|score|level|balance|percent|progress|#|of)\W{0,4}$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ChangedText:
    """What changed in a text: the class, both values, and where the first of them begins.

    ``certain`` says that both values look like what the class says, wherever they stand.
    """

    cause: str
    before: str
    after: str
    character: int
    certain: bool


def changed_text(before: str, after: str) -> ChangedText:
    """The class of the first words in which two texts differ."""
    start, ours, theirs = _first_change(before, after)
    lead, tail = after[max(0, start - _AROUND) : start], after[start + len(ours) :][:_AROUND]
    found = difference(lead, ours, theirs, tail)
    lead = lead[: len(lead) - _grown(lead, found.value, ours)]
    cause, certain = _cause(found, lead)
    return ChangedText(cause, found.other, found.value, start, certain)


def _cause(found: Difference, lead: str) -> tuple[str, bool]:
    line = lead.rpartition("\n")[2] or lead[-80:]
    match found.kind:
        case ValueKind.TIME | ValueKind.DATE:
            return "volatile_value.timestamp", True
        case ValueKind.AGE:
            return "volatile_value.relative_time", True
        case ValueKind.PATH:
            return "volatile_value.path", True
        case ValueKind.USER_NAME:
            return "volatile_value.user", True
        case ValueKind.UUID:
            named = bool(_NONCE.search(line))
            return f"volatile_value.{'nonce' if named else 'identifier'}", True
        case ValueKind.IDENTIFIER:
            return _random(line, lead), True
        case ValueKind.COUNTER:
            return _number(found, line), True
        case ValueKind.OTHER:
            return _words(found, line, lead)


def _random(line: str, lead: str) -> str:
    if _NONCE.search(line):
        return "volatile_value.nonce"
    if _FILES.search(line):
        return "volatile_value.path"
    if _PERSON.search(line) and re.search(r"user|customer|client|account", line, re.IGNORECASE):
        return "volatile_value.user"
    return f"volatile_value.{'identifier' if _IDENTIFIED.search(lead) else 'nonce'}"


def _number(found: Difference, line: str) -> str:
    if _COUNTING.search(line):
        return "volatile_value.counter"
    if _NONCE.search(line):
        return "volatile_value.nonce"
    digits = min(len(re.sub(r"\D", "", one)) for one in (found.value, found.other))
    if _IDENTIFIED.search(line):
        return "volatile_value.identifier"
    if _PERSON.search(line) and digits >= 3:
        return "volatile_value.user"
    return f"volatile_value.{'nonce' if digits >= 8 else 'counter'}"


def _words(found: Difference, line: str, lead: str) -> tuple[str, bool]:
    longest = max(len(one.split()) for one in (found.value, found.other))
    if _FILES.search(lead[-_AROUND:]) or _STATE.search(found.value or found.other):
        return "volatile_value.path", False
    if longest < _FREE_TEXT_WORDS:
        if _PERSON.search(line):
            return "volatile_value.user", False
        if _IDENTIFIED.search(line) or _NONCE.search(line):
            named = bool(_NONCE.search(line))
            return f"volatile_value.{'nonce' if named else 'identifier'}", False
        if longest == 1 and all(any(map(str.isdigit, one)) for one in (found.value, found.other)):
            return "volatile_value.nonce", False
    return "context.injected_before_history", False


def _first_change(before: str, after: str) -> tuple[int, str, str]:
    """Where ``after`` first has other words than ``before``, these words, and those."""
    start = common_prefix(before, after)
    while start and not after[start - 1].isspace():  # whole words: both texts are equal up to here
        start -= 1
    theirs, ours = before[start:], after[start:]
    same = common_suffix(theirs, ours, min(len(theirs), len(ours)))
    while same and not ours[len(ours) - same].isspace():
        same -= 1
    middle_theirs, middle_ours = theirs[: len(theirs) - same], ours[: len(ours) - same]
    words = [_WORD.findall(middle) for middle in (middle_theirs, middle_ours)]
    if max(map(len, words)) > 2 * _MOST_WORDS:
        return start, middle_ours, middle_theirs
    matcher = SequenceMatcher(None, words[0], words[1], autojunk=False)
    place, changed_ours, changed_theirs = start, "", ""
    for tag, low, high, ours_low, ours_high in matcher.get_opcodes():
        stretch = "".join(words[1][ours_low:ours_high])
        if tag != "equal":
            changed_theirs += "".join(words[0][low:high])
            changed_ours += stretch
        elif not (changed_ours or changed_theirs):
            place += len(stretch)
        elif stretch.isspace() and "\n" not in stretch and high < len(words[0]):
            changed_ours += stretch
            changed_theirs += stretch
        else:
            break
    return _trimmed(place, changed_ours, changed_theirs)


def _trimmed(place: int, ours: str, theirs: str) -> tuple[int, str, str]:
    """The same without what both begin and end with, up to a sign that ends a value."""
    head = common_prefix(ours, theirs)
    head = max((ours.rfind(edge, 0, head) + 1 for edge in _EDGES), default=0)
    ours, theirs = ours[head:], theirs[head:]
    tail = common_suffix(ours, theirs, min(len(ours), len(theirs)))
    ends = [at for edge in _EDGES if (at := ours.find(edge, len(ours) - tail)) >= 0]
    cut = len(ours) - min(ends, default=len(ours))
    return place + head, ours[: len(ours) - cut], theirs[: len(theirs) - cut]


def _grown(lead: str, value: str, ours: str) -> int:
    """How many characters in front of the words belong to the value as it was found."""
    inside = value.find(ours.strip())
    return inside if inside > 0 and lead.endswith(value[:inside]) else 0
