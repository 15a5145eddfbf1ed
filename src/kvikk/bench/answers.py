"""What one request brought: the moments of its tokens, its text, and the server's own counts."""

import json
import time
from dataclasses import dataclass
from typing import Any

from kvikk.bench.http_client import EventReader


@dataclass(frozen=True)
class Counts:
    """A server's usage. ``cached_tokens`` None: it does not tell what it reused."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None


@dataclass(frozen=True)
class Result:
    """One request. Times are seconds since the run began.

    ``turn`` counts from 0. ``error`` is the kind of failure, None for an answer that came whole;
    ``due_s`` is when it should have been sent. ``counts`` None: the server told none, and
    ``num_events`` is the nearest there is to a number of tokens. ``longest_gap_s`` is the longest
    wait between two events.
    """

    session: int
    turn: int
    wanted_tokens: int
    due_s: float
    sent_s: float
    first_token_s: float | None = None
    last_token_s: float | None = None
    num_events: int = 0
    longest_gap_s: float = 0.0
    counts: Counts | None = None
    finish_reason: str | None = None
    error: str | None = None
    message: str | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, from sending."""
        return None if self.first_token_s is None else self.first_token_s - self.sent_s

    @property
    def completion_tokens(self) -> int:
        """Tokens of the answer, by the server's count where it tells one."""
        return self.counts.completion_tokens if self.counts else self.num_events

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first."""
        if self.first_token_s is None or self.last_token_s is None or self.completion_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.completion_tokens - 1)


class AnswerReader:
    """Reads one streamed answer as it comes. Moments are on the monotonic clock."""

    def __init__(self) -> None:
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.num_events = 0
        self.longest_gap_s = 0.0
        self.counts: Counts | None = None
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.is_done = False
        self._events = EventReader()
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self._parts)

    def feed(self, data: bytes) -> None:
        """More of the body. What is no JSON ends up in ``error``."""
        now_s = time.monotonic()
        for event in self._events.feed(data):
            if event == b"[DONE]":
                self.is_done = True
                continue
            try:
                value = json.loads(event)
            except ValueError:
                value = None
            if isinstance(value, dict):
                self._take(value, now_s)
            else:
                self.error = f"an event that is no JSON object: {event[:60]!r}"

    def _take(self, event: dict[str, Any], now_s: float) -> None:
        if event.get("error"):
            error = event["error"]
            self.error = str(error.get("message", error) if isinstance(error, dict) else error)
        self.counts = read_counts(event) or self.counts
        for choice in event.get("choices") or ():
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            text, is_token = _token_text(choice)
            if is_token:
                self.num_events += 1
                if self.last_token_s is not None:
                    self.longest_gap_s = max(self.longest_gap_s, now_s - self.last_token_s)
                if self.first_token_s is None:
                    self.first_token_s = now_s
                self.last_token_s = now_s
                self._parts.append(text)


def _token_text(choice: dict[str, Any]) -> tuple[str, bool]:
    """The text of an event's choice, and whether it stands for a token at all.

    A chat stream may open with the role alone and close with the reason alone. A token may have no
    text yet, while a character is incomplete: then the event still is there.
    """
    delta = choice.get("delta")
    if delta is None:
        text = choice.get("text")
        return text or "", text is not None and (bool(text) or not choice.get("finish_reason"))
    text = delta.get("content")
    thought = delta.get("reasoning_content") or delta.get("reasoning")
    opens_or_closes = delta.get("role") or choice.get("finish_reason")
    return text or "", bool(text or thought) or (text == "" and not opens_or_closes)


def read_counts(body: dict[str, Any]) -> Counts | None:
    """The usage in a response or an event, None if there is none.

    llama.cpp tells what it reused in ``timings`` too, and older builds only there.
    """
    usage = body.get("usage")
    if not isinstance(usage, dict) or not isinstance(usage.get("prompt_tokens"), int):
        return None
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    if cached is None:
        cached = (body.get("timings") or {}).get("cache_n")
    return Counts(usage["prompt_tokens"], usage.get("completion_tokens") or 0, cached)
