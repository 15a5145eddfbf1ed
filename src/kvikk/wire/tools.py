"""Tools: what a model may call and what it called, one record for every API.

Chat Completions' JSON is read and written here; the other APIs spell the same records their way.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from kvikk.wire.reading import JsonValue

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")

ToolMode = Literal["none", "auto", "required"]


@dataclass(frozen=True)
class Tool:
    """A function that a model may call.

    ``parameters`` is the JSON schema of its arguments, an object's; None takes any object. With
    ``strict`` the arguments must keep to it, whatever the model would rather say.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    strict: bool = False

    @classmethod
    def from_json(cls, value: JsonValue) -> "Tool":
        """Read ``{"type": "function", "function": {…}}``."""
        if value.get("type").string() != "function":
            value.get("type").fail("only tools of type 'function' are supported")
        function = value.get("function")
        return cls(
            read_tool_name(function.get("name")),
            _text(function.get("description")),
            read_schema(function.get("parameters")),
            function.get("strict").boolean(False),
        )

    def to_json(self) -> dict[str, Any]:
        """The same, as chat templates expect it too."""
        function: dict[str, Any] = {"name": self.name, "description": self.description}
        if self.parameters is not None:
            function["parameters"] = self.parameters
        if self.strict:
            function["strict"] = True
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class ToolCall:
    """A call that a model made. ``arguments`` is its own text, JSON if it did well."""

    id: str
    name: str
    arguments: str

    @classmethod
    def from_json(cls, value: JsonValue) -> "ToolCall":
        """Read a call of an assistant's message."""
        kind = value.get("type")
        if not kind.is_null and kind.string() != "function":
            kind.fail("only calls of type 'function' are supported")
        function = value.get("function")
        return cls(
            _text(value.get("id")),
            function.get("name").string(),
            _text(function.get("arguments")),
        )

    def to_json(self) -> dict[str, Any]:
        """The call in an assistant's message."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True)
class ToolChoice:
    """Whether tools are called: ``none`` never, ``auto`` as the model likes, ``required`` always.

    A ``name`` goes with ``required``: that tool and no other.
    """

    mode: ToolMode = "auto"
    name: str | None = None


@dataclass(frozen=True)
class ToolUse:
    """The tools of one request and how they may be used. With ``parallel`` several calls a turn."""

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = ToolChoice()
    parallel: bool = True

    @classmethod
    def from_json(cls, body: JsonValue) -> "ToolUse":
        """Read ``tools``, ``tool_choice`` and ``parallel_tool_calls`` of a Chat Completions body.

        Raises RequestError, naming the path, for what cannot be understood.
        """
        listed = body.get("tools")
        tools = () if listed.is_null else tuple(map(Tool.from_json, listed.items()))
        choice = _read_choice(body.get("tool_choice"))
        return cls(tools, choice, body.get("parallel_tool_calls").boolean(True)).check(
            listed, body.get("tool_choice")
        )

    def check(self, tools: JsonValue, choice: JsonValue) -> "ToolUse":
        """Itself, if it makes sense; RequestError at the place in the body where it does not."""
        names = [tool.name for tool in self.tools]
        if len(names) > MAX_TOOLS:
            tools.fail(f"at most {MAX_TOOLS} tools, not {len(names)}")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            tools.fail(f"two tools are called {twice!r}; give each a name of its own")
        if self.choice.mode == "required" and not names:
            choice.fail("asks for a call, and there are no tools")
        if self.choice.name is not None and self.choice.name not in names:
            choice.fail(f"no tool is called {self.choice.name!r}")
        return self

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools that the model is told of."""
        return () if self.choice.mode == "none" else self.tools

    def to_json(self) -> dict[str, Any]:
        """The fields of a body, those at their defaults left out."""
        fields: dict[str, Any] = {}
        if self.tools:
            fields["tools"] = [tool.to_json() for tool in self.tools]
        if self.choice.name is not None:
            fields["tool_choice"] = {"type": "function", "function": {"name": self.choice.name}}
        elif self.choice.mode != "auto":
            fields["tool_choice"] = self.choice.mode
        if not self.parallel:
            fields["parallel_tool_calls"] = False
        return fields


def read_tool_name(value: JsonValue) -> str:
    """A tool's name, of letters, digits and ``_ . : -``."""
    name = value.string()
    if not _NAME.fullmatch(name):
        value.fail("a tool's name has 1 to 128 letters, digits, _, ., : and -")
    return name


def read_schema(value: JsonValue) -> Mapping[str, Any] | None:
    """A JSON schema for a tool's arguments; None where there is none, or an empty one."""
    return None if value.is_null else value.members() or None


def _read_choice(value: JsonValue) -> ToolChoice:
    if value.is_null:
        return ToolChoice()
    if isinstance(value.value, dict):
        if value.get("type").string() != "function":
            value.get("type").fail("only a choice of type 'function' is supported")
        return ToolChoice("required", value.get("function").get("name").string())
    mode = next((mode for mode in get_args(ToolMode) if mode == value.string()), None)
    if mode is None:
        value.fail("expected none, auto, required, or an object that names a function")
    return ToolChoice(mode)


def _text(value: JsonValue) -> str:
    return "" if value.is_null else value.string()
