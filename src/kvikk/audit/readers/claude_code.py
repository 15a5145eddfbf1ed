"""Claude Code's transcripts: each answer's request is put together from what was said before it.

A record knows its parent, so a conversation that was taken back and begun again is a tree, and a
request is the way from its root. System prompt and tools are not in a transcript; a text of as many
tokens as the first answer's count leaves stands for them, and markers stand where Claude Code sets
them: behind the instructions and on the newest message.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kvikk.audit.readers.found import Found, text

_MOST_SESSIONS = 64
_CHARACTERS_PER_TOKEN = 3.7
_MOST_HIDDEN_CHARACTERS = 1 << 20


@dataclass
class _Session:
    """The records of one conversation by id: parent, role, content and the answer's id."""

    records: dict[str, tuple[str, str, Any, str]] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    hidden: str | None = None


class ClaudeCodeReader:
    """Reads records in the order of their file; the latest sessions are remembered."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    def __call__(self, record: dict[str, Any]) -> list[Found] | None:
        """The exchange that an answer ends; none for other records; None for other logs'."""
        if not isinstance(record.get("sessionId"), str) or "uuid" not in record:
            return [] if _is_aside(record) else None
        session = self._session(f"{record['sessionId']} {record.get('isSidechain')}")
        message = record.get("message")
        said = message if isinstance(message, dict) else {}
        role = text(said, "role")
        key, parent = str(record["uuid"]), str(record.get("parentUuid") or "")
        if record.get("isCompactSummary"):
            parent = ""
        answer = text(said, "id")
        found = []
        usage = said.get("usage")
        if role == "assistant" and isinstance(usage, dict) and answer not in session.answered:
            session.answered.add(answer)
            found = [self._found(record, said, usage, session, parent, answer)]
        session.records[key] = (parent, role, said.get("content"), answer)
        return found

    def _session(self, name: str) -> _Session:
        session = self._sessions.setdefault(name, _Session())
        self._sessions.move_to_end(name)
        while len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def _found(
        self,
        record: dict[str, Any],
        said: dict[str, Any],
        usage: dict[str, Any],
        session: _Session,
        parent: str,
        answer: str,
    ) -> Found:
        history = _history(session, parent, answer)
        if session.hidden is None:
            session.hidden = _hidden(usage, history)
        control: dict[str, Any] = {"type": "ephemeral"}
        created = usage.get("cache_creation")
        if isinstance(created, dict) and created.get("ephemeral_1h_input_tokens"):
            control["ttl"] = "1h"
        if history:
            history[-1] = {**history[-1], "content": _marked(history[-1]["content"], control)}
        body = {
            "model": text(said, "model"),
            "system": [{"type": "text", "text": session.hidden, "cache_control": control}],
            "messages": history,
        }
        return Found(
            body,
            api="messages",
            provider="anthropic",
            response={"usage": usage, "model": text(said, "model")},
            known={"id": text(record, "requestId") or answer, "at_s": _time_s(record)},
        )


def _history(session: _Session, parent: str, answer: str) -> list[dict[str, Any]]:
    """The messages on the way from the root to ``parent``; pieces of one answer are one."""
    way = []
    seen: set[str] = set()
    while parent in session.records and parent not in seen:
        seen.add(parent)
        above, role, content, name = session.records[parent]
        if role and name != answer:
            way.append((role, content, name))
        parent = above
    messages: list[dict[str, Any]] = []
    last = ""
    for role, content, name in reversed(way):
        if name and name == last and isinstance(content, list):
            messages[-1] = {**messages[-1], "content": [*messages[-1]["content"], *content]}
        else:
            messages.append({"role": role, "content": content})
        last = name if isinstance(content, list) else ""
    return messages


def _marked(content: Any, control: dict[str, Any]) -> Any:
    if isinstance(content, str):
        return [{"type": "text", "text": content, "cache_control": control}]
    if isinstance(content, list) and content and isinstance(content[-1], dict):
        return [*content[:-1], {**content[-1], "cache_control": control}]
    return content


def _hidden(usage: dict[str, Any], history: list[dict[str, Any]]) -> str:
    """A text as long as what the transcript leaves out."""
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    counts = [usage.get(name) for name in names]
    total = sum(count for count in counts if isinstance(count, int))
    known = sum(len(str(message["content"])) for message in history)
    missing = min(_MOST_HIDDEN_CHARACTERS, max(0, int(total * _CHARACTERS_PER_TOKEN) - known))
    return "(system prompt and tools, which a transcript leaves out)".ljust(missing, ".")


def _is_aside(record: dict[str, Any]) -> bool:
    """Whether it is a record of a transcript that says nothing: a summary, a snapshot of files."""
    return record.get("type") in ("summary", "file-history-snapshot", "queue-operation")


def _time_s(record: dict[str, Any]) -> float | None:
    try:
        return datetime.fromisoformat(text(record, "timestamp")).timestamp()
    except ValueError:
        return None
