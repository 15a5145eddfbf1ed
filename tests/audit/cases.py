"""Public reports of missed caches as logs: read, filled with text, and asked about."""

import hashlib
import json
import random
import re
from functools import cache
from pathlib import Path
from typing import Any

from kvikk.audit.auditor import Auditor
from kvikk.audit.exchange import make_exchange
from kvikk.audit.findings import Audited, Finding

CASES = Path(__file__).parent / "data" / "cases"
_PAD = re.compile(r"\{\{pad:([^:}]+):(\d+)\}\}")
_PICTURE = re.compile(r"\{\{(png|jpg):[^}]+\}\}")
_SYLLABLES = ("ba", "ke", "li", "mo", "nu", "ra", "se", "ti", "vo", "zu")


@cache
def filler(name: str, num_words: int) -> str:
    """Words that are the same for the same name and number; other names differ at once."""
    chance = random.Random(f"{name}:{num_words}")
    words = (
        "".join(chance.choices(_SYLLABLES, k=chance.choice((1, 2, 2)))) for _ in range(num_words)
    )
    return f"{name} {' '.join(words)}"


def filled(value: Any) -> Any:
    """``value`` with every placeholder in its texts filled in."""
    if isinstance(value, dict):
        return {name: filled(member) for name, member in value.items()}
    if isinstance(value, list):
        return [filled(member) for member in value]
    if isinstance(value, str):
        text = _PAD.sub(lambda found: filler(found[1], int(found[2])), value)
        return _PICTURE.sub(lambda found: _picture(found[0]), text)
    return value


def load(file: Path) -> dict[str, Any]:
    """A case, filled."""
    case: dict[str, Any] = filled(json.loads(file.read_text()))
    return case


def log_lines(case: dict[str, Any]) -> list[dict[str, Any]]:
    """A case as lines of kvikk's own log."""
    lines = []
    for index, request in enumerate(case["requests"]):
        known = dict(case.get("timeline", [])[index]) if case.get("timeline") else {}
        answers, sent_on = case.get("responses", []), case.get("upstream_requests", [])
        answer = dict(answers[index] or {}) if index < len(answers) else {}
        if (usage := known.pop("usage", None)) is not None:
            answer["usage"] = usage
        line = {
            "request": request,
            "api": case.get("api", ""),
            "provider": case.get("provider", ""),
            "host": known.pop("response_provider", ""),
            **known,
        }
        if answer:
            line["response"] = answer
        if index < len(sent_on):
            line["upstream_request"] = sent_on[index]
        lines.append(line)
    return lines


def audit(lines: list[dict[str, Any]]) -> tuple[list[Audited], list[Finding]]:
    """All lines audited, and all that was found, what shows at the end included."""
    auditor, results = Auditor(), []
    for index, line in enumerate(lines):
        known = {name: value for name, value in line.items() if name != "request"}
        upstream = known.pop("upstream_request", None)
        exchange = make_exchange(index, line["request"], upstream=upstream, **known)
        assert exchange is not None, line
        results.append(auditor.feed(exchange))
    findings = [finding for result in results for finding in result.findings]
    return results, [*findings, *auditor.close()]


def is_inside(location: str, expected: str) -> bool:
    """Whether a path names the expected place or something inside it."""
    if not location.startswith(expected):
        return False
    return location == expected or expected == "$" or location[len(expected)] in ".["


def _picture(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest() * 8
