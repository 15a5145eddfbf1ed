"""An answer's text, taken apart as it comes: what is thought, what is said, which tools are called.

Models write all of it as text, each family in its own way:

    hermes    <tool_call>{"name": …, "arguments": {…}}</tool_call>   Qwen, Hermes, SmolLM
    mistral   [TOOL_CALLS][{"name": …, "arguments": {…}}]   or   [TOOL_CALLS]name[ARGS]{…}
    llama     {"name": …, "parameters": {…}}, all there is to the answer

and reasoning between ``<think>`` and ``</think>``. What looks like a call and is none is text.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from kvikk.text.json_scan import JsonScan
from kvikk.text.stream import overlap
from kvikk.wire.deltas import AnswerDelta, ReasoningDelta, TextDelta, ToolCallDelta

ToolStyle = Literal["hermes", "mistral", "llama"]

CALL_OPEN = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", "llama": "<|python_tag|>"}
_CALL_CLOSE = {"hermes": "</tool_call>", "mistral": "", "llama": ""}
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

# A call as far as its arguments, which can be passed on as they come if they are an object.
_HEAD = re.compile(
    r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_NAMED_HEAD = re.compile(r"([A-Za-z0-9_.:-]+)(?:\[CALL_ID\][A-Za-z0-9]*)?(?:\[ARGS\])?(?=\{)")
_MAYBE_NAMED = re.compile(r"[A-Za-z0-9_.:-]+(\[[A-Z_]*(\][A-Za-z0-9]*(\[[A-Z]*\]?)?)?)?")
_BETWEEN = " \n\r\t[],;"


@dataclass(frozen=True)
class AnswerStyle:
    """What may be in one answer's text. ``tools`` None: no calls are looked for.

    ``begins_thinking`` where the prompt has opened the reasoning already. Without ``parallel`` the
    first call is the only one.
    """

    tools: ToolStyle | None = None
    reasons: bool = False
    begins_thinking: bool = False
    parallel: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether the text is the whole answer."""
        return self.tools is None and not self.reasons


def new_call_id() -> str:
    """An id for a call, as nobody can guess."""
    return f"call_{secrets.token_hex(12)}"


class AnswerSplitter:
    """Takes one answer apart. All that ``push`` and ``finish`` return, joined, is the answer.

    Text is passed on at once, but for what may be the beginning of a mark, and for white space
    around calls and reasoning, which nobody said.
    """

    def __init__(self, style: AnswerStyle, make_id: Callable[[], str] = new_call_id) -> None:
        self._style = style
        self._make_id = make_id
        self._rest = ""
        self._mode: Literal["text", "thinking", "call"] = "text"
        if style.begins_thinking:
            self._mode = "thinking"
        self._fresh = True  # nothing said since the beginning, or since a mark
        self._begun = False  # anything at all has been passed on
        self._opened = ""  # the mark of the call that is being read, in case it is none
        self._num_calls = 0
        self._call: _Call | None = None

    @property
    def is_thinking(self) -> bool:
        """Whether what comes next is reasoning, as far as is known."""
        return self._mode == "thinking"

    def push(self, text: str) -> list[AnswerDelta]:
        """What ``text`` brings, with what was held back before."""
        self._rest += text
        return list(self._advance())

    def finish(self) -> list[AnswerDelta]:
        """What is left, now that nothing more can come."""
        rest, self._rest = self._rest, ""
        if self._mode == "thinking":
            return [ReasoningDelta(rest)] if rest else []
        if self._mode == "call":
            if self._call is not None and self._call.is_told:
                return []  # what could be passed on has been
            rest = self._opened + rest if rest.strip(_BETWEEN) else ""
        if self._fresh and self._begun:
            rest = rest.strip()
        return [TextDelta(rest)] if rest else []

    def _advance(self) -> Iterator[AnswerDelta]:
        moved = True
        while moved and self._rest:
            before = (self._mode, len(self._rest), self._call)
            if self._mode == "thinking":
                yield from self._think()
            elif self._mode == "text":
                yield from self._speak()
            else:
                yield from self._read_calls()
            moved = before != (self._mode, len(self._rest), self._call)

    def _think(self) -> Iterator[AnswerDelta]:
        if not self._begun:
            self._rest = self._rest.lstrip()
        thought, found, rest = self._rest.partition(THINK_CLOSE)
        if found:
            self._mode, self._fresh = "text", True
            thought = thought.rstrip()
        else:
            unmarked = thought[: len(thought) - overlap(thought, THINK_CLOSE)].rstrip()
            thought, rest = unmarked, thought[len(unmarked) :]
        self._rest = rest
        self._begun = self._begun or bool(thought) or bool(found)
        if thought:
            yield ReasoningDelta(thought)

    def _speak(self) -> Iterator[AnswerDelta]:
        style, text = self._style, self._rest
        if self._fresh:
            text = text.lstrip()
            if style.reasons and not self._begun and text.startswith(THINK_OPEN):
                self._rest, self._mode = text.removeprefix(THINK_OPEN), "thinking"
                return
            if style.tools == "llama" and not self._num_calls and text.startswith("{"):
                self._rest, self._mode, self._opened = text, "call", ""
                return
        marks = [CALL_OPEN[style.tools]] if style.tools is not None else []
        if style.reasons and not self._begun:
            marks.append(THINK_OPEN)
        for mark in marks[:1] if style.tools is not None else ():
            said, found, rest = text.partition(mark)
            if found:
                self._rest, self._mode, self._opened = rest, "call", mark
                yield from self._say(said)
                return
        held = max((overlap(text, mark) for mark in marks), default=0)
        cut = len(text) - held
        if text[:cut].strip() or not self._fresh:
            self._rest = text[cut:]
            yield from self._say(text[:cut])

    def _say(self, text: str) -> Iterator[AnswerDelta]:
        if self._fresh and (self._begun or self._mode == "call"):
            text = text if text.strip() else ""
        if text:
            self._fresh, self._begun = False, True
            yield TextDelta(text)

    def _read_calls(self) -> Iterator[AnswerDelta]:
        if self._call is not None:
            yield from self._go_on(self._call)
            return
        style = self._style.tools or "hermes"
        text, open_again, close = self._rest.lstrip(), CALL_OPEN[style], _CALL_CLOSE[style]
        if text.startswith(open_again):
            text = text.removeprefix(open_again)
        elif open_again.startswith(text):
            return
        text = text.lstrip(_BETWEEN)
        if close and text.startswith(close):
            self._leave_calls(text.removeprefix(close))
            return
        if not text or (close and close.startswith(text)):
            return
        if text.startswith("{"):
            self._rest, self._call = text, _Call(_HEAD)
        elif self._style.tools == "mistral" and _NAMED_HEAD.match(text):
            self._rest, self._call = text, _Call(_NAMED_HEAD)
        elif self._style.tools == "mistral" and _MAYBE_NAMED.fullmatch(text):
            return
        else:
            yield from self._no_call()

    def _go_on(self, call: "_Call") -> Iterator[AnswerDelta]:
        for piece in call.read(self._rest):
            if call.name is not None and self._may_call:
                first = not call.is_told
                call.is_told = True
                yield ToolCallDelta(
                    self._num_calls,
                    piece,
                    self._make_id() if first else None,
                    call.name if first else None,
                )
        if call.stop is None:
            return
        if call.name is None:
            self._call = None
            yield from self._no_call()
            return
        self._begun = True
        self._num_calls += self._may_call
        self._rest, self._call, self._opened = self._rest[call.stop :], None, ""

    @property
    def _may_call(self) -> bool:
        return self._style.parallel or self._num_calls == 0

    def _no_call(self) -> Iterator[AnswerDelta]:
        """What was taken for a call is text, its mark included."""
        text, self._rest = self._opened + self._rest, ""
        self._mode, self._opened = "text", ""
        if text.strip() or not self._begun:
            self._fresh, self._begun = False, True
            yield TextDelta(text)

    def _leave_calls(self, rest: str) -> None:
        self._rest, self._mode, self._fresh, self._opened = rest, "text", True, ""


class _Call:
    """One call while it is read: ``stop`` is where it ends, ``name`` None if it is no call then."""

    def __init__(self, head: re.Pattern[str]) -> None:
        self._head = head
        self._whole = JsonScan()
        self._arguments: JsonScan | None = None  # once they can be passed on
        self._passed_on = 0
        self.name: str | None = None
        self.is_told = False
        self.stop: int | None = None

    def read(self, text: str) -> Iterator[str]:
        """Pieces of the arguments, of a text that begins with the call and has grown."""
        if self._arguments is None:
            head = self._head.match(text)
            if head is not None:
                quoted = head[1]
                self.name = json.loads(quoted) if quoted.startswith('"') else quoted
                self._arguments = JsonScan(head.end())
                self._passed_on = head.end()
        if self._arguments is not None:
            stop = self._arguments.read(text)
            end = len(text) if stop is None else stop
            if end > self._passed_on:
                start, self._passed_on = self._passed_on, end
                yield text[start:end]
        if self._head is _NAMED_HEAD:
            self.stop = None if self._arguments is None else self._arguments.stop
            return
        self.stop = self._whole.read(text)
        if self.stop is not None and self._arguments is None:
            yield from self._read_whole(text[: self.stop])

    def _read_whole(self, text: str) -> Iterator[str]:
        """A call whose arguments came before its name, or not as an object."""
        try:
            call = json.loads(text)
        except (ValueError, RecursionError):
            return
        name = call.get("name")
        if not isinstance(name, str):
            return
        arguments = call.get("arguments", call.get("parameters", {}))
        self.name = name
        yield arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
