"""The bodies of ``POST /v1/responses`` and ``POST /v1/responses/input_tokens``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvikk.wire.caching import CacheFields
from kvikk.wire.conversation import Message, Text
from kvikk.wire.generation import GenerationFields
from kvikk.wire.grammars import GrammarSpec, read_format
from kvikk.wire.reading import JsonValue
from kvikk.wire.responses.items import read_input
from kvikk.wire.tools import Tool, ToolChoice, ToolUse, read_schema, read_tool_name

# Fields that change an answer and are not honoured here, with the values that ask for nothing.
_NOT_SUPPORTED: Mapping[str, tuple[object, ...]] = {
    "background": (False,),
    "conversation": (),
    "prompt": (),
    "context_management": ([],),
    "truncation": ("disabled",),
}


@dataclass(frozen=True)
class ResponsesPrompt:
    """What the model reads: instructions in front of a conversation, and tools."""

    messages: tuple[Message, ...]
    tools: ToolUse

    @classmethod
    def from_json(cls, body: JsonValue) -> "ResponsesPrompt":
        """Read it. Raises RequestError, naming the path, for what cannot be understood."""
        for name, neutral in _NOT_SUPPORTED.items():
            value = body.get(name)
            if not value.is_null and value.value not in neutral:
                value.fail("is not supported; leave it out")
        _check_hints(body)
        messages = read_input(body.get("input"))
        instructions = body.get("instructions")
        if not instructions.is_null:
            text = Text(instructions.string(), instructions.path)
            messages = (Message("system", (text,)), *messages)
        if not messages:
            body.get("input").fail("is empty; at least one item is needed")
        return cls(messages, _read_tools(body))


@dataclass(frozen=True)
class ResponsesRequest:
    """The body of ``POST /v1/responses``.

    It goes on from the response ``previous_id``; ``echo`` is what an answer repeats of it.
    """

    generation: GenerationFields
    prompt: ResponsesPrompt
    caching: CacheFields
    previous_id: str | None
    store: bool
    echo: Mapping[str, Any]

    @classmethod
    def from_json(cls, body: JsonValue) -> "ResponsesRequest":
        """Read a body. Raises RequestError, naming the path, for what cannot be understood."""
        generation = GenerationFields.from_json(
            body, limit_names=("max_output_tokens",), default_limit=None
        )
        text_format = _read_text_format(body.get("text"))
        if text_format is not None:
            generation = replace(generation, grammar=text_format)
        prompt = ResponsesPrompt.from_json(body)
        caching = CacheFields.from_json(body)
        return cls(
            generation,
            prompt,
            caching,
            _read_previous_id(body),
            body.get("store").boolean(True),
            _echo(body, generation, prompt, caching),
        )


@dataclass(frozen=True)
class CountRequest:
    """The body of ``POST /v1/responses/input_tokens``."""

    model: str | None
    prompt: ResponsesPrompt
    previous_id: str | None

    @classmethod
    def from_json(cls, body: JsonValue) -> "CountRequest":
        """Read a body. Raises RequestError, naming the path, for what cannot be understood."""
        model = body.get("model")
        return cls(
            None if model.is_null else model.string(),
            ResponsesPrompt.from_json(body),
            _read_previous_id(body),
        )


def join_input(before: Sequence[Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """``body`` as if the items ``before`` had been sent with it."""
    return {**body, "input": [*before, *input_items(body)]}


def input_items(body: Mapping[str, Any]) -> list[Any]:
    """The input of a body that was read, as items."""
    given = body["input"]
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return list(given)


def _read_text_format(text: JsonValue) -> GrammarSpec | None:
    if text.is_null or text.get("format").is_null:
        return None
    return read_format(text.get("format"))


def _check_hints(body: JsonValue) -> None:
    """Read ``text`` and ``reasoning``: how much is said or thought is the model's own affair."""
    text, reasoning = body.get("text"), body.get("reasoning")
    if not text.is_null:
        _check_word(text.get("verbosity"))
    if not reasoning.is_null:
        for name in ("effort", "summary"):
            _check_word(reasoning.get(name))


def _check_word(value: JsonValue) -> None:
    if not value.is_null:
        value.string()


def _read_previous_id(body: JsonValue) -> str | None:
    previous = body.get("previous_response_id")
    return None if previous.is_null else previous.string()


def _read_tools(body: JsonValue) -> ToolUse:
    listed, choice = body.get("tools"), body.get("tool_choice")
    tools = []
    for value in () if listed.is_null else listed.items():
        if value.get("type").string() != "function":
            value.get("type").fail("only tools of type 'function' are supported")
        description = value.get("description")
        tools.append(
            Tool(
                read_tool_name(value.get("name")),
                "" if description.is_null else description.string(),
                read_schema(value.get("parameters")),
                value.get("strict").boolean(False),
            )
        )
    use = ToolUse(tuple(tools), _read_choice(choice), body.get("parallel_tool_calls").boolean(True))
    return use.check(listed, choice)


def _read_choice(choice: JsonValue) -> ToolChoice:
    if choice.is_null:
        return ToolChoice()
    if isinstance(choice.value, dict):
        if choice.get("type").string() != "function":
            choice.get("type").fail("only a choice of type 'function' is supported")
        return ToolChoice("required", choice.get("name").string())
    match choice.string():
        case "none" | "auto" | "required" as mode:
            return ToolChoice(mode)
    return choice.fail("expected none, auto, required, or an object that names a function")


def _echo(
    body: JsonValue, generation: GenerationFields, prompt: ResponsesPrompt, caching: CacheFields
) -> dict[str, Any]:
    """The fields that a response repeats, with what they were taken to be."""
    given = body.members()
    options = None
    if "prompt_cache_options" in caching.to_json():
        options = {
            "mode": caching.mode or "implicit",
            "ttl": caching.ttl or "30m",
            "comparison_response_id": caching.comparison_response_id,
        }
    metadata = body.get("metadata")
    return {
        "background": False,
        "instructions": given.get("instructions"),
        "max_output_tokens": generation.max_tokens,
        "metadata": {} if metadata.is_null else dict(metadata.members()),
        "parallel_tool_calls": prompt.tools.parallel,
        "previous_response_id": given.get("previous_response_id"),
        "prompt_cache_key": caching.key,
        "prompt_cache_options": options,
        "prompt_cache_retention": caching.retention,
        "reasoning": given.get("reasoning") or {"effort": None, "summary": None},
        "service_tier": "default",
        "store": body.get("store").boolean(True),
        "temperature": generation.temperature,
        "text": given.get("text") or {"format": {"type": "text"}},
        "tool_choice": given.get("tool_choice") or "auto",
        "tools": [_tool_json(tool) for tool in prompt.tools.tools],
        "top_p": generation.top_p,
        "truncation": "disabled",
    }


def _tool_json(tool: Tool) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
