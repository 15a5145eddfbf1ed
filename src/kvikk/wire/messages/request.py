"""The bodies of ``POST /v1/messages`` and ``POST /v1/messages/count_tokens``."""

from dataclasses import dataclass, replace

from kvikk.wire.conversation import Message
from kvikk.wire.generation import GenerationFields
from kvikk.wire.grammars import read_format
from kvikk.wire.messages.content import read_messages, read_texts
from kvikk.wire.messages.markers import Markers
from kvikk.wire.reading import JsonValue
from kvikk.wire.tools import Tool, ToolChoice, ToolUse, read_schema, read_tool_name

MAX_STOP_SEQUENCES = 64

# Fields that change an answer and are not honoured here.
_NOT_SUPPORTED = ("container", "mcp_servers", "context_management")
_THINKING = ("enabled", "disabled", "adaptive")


@dataclass(frozen=True)
class MessagesPrompt:
    """What the model reads: a conversation, its system prompt in front, and tools.

    ``continues`` says that the last message is the beginning of the answer.
    """

    messages: tuple[Message, ...]
    tools: ToolUse
    continues: bool

    @classmethod
    def from_json(cls, body: JsonValue) -> "MessagesPrompt":
        """Read it. Raises RequestError, naming the path, for what cannot be understood."""
        markers = Markers()
        tools = _read_tools(body, markers)  # markers are counted in the order of rendering
        system = read_texts(body.get("system"), markers)
        messages = read_messages(body.get("messages"), markers)
        markers.read(body)
        markers.check()
        for name in _NOT_SUPPORTED:
            if body.get(name).value not in (None, [], {}):
                body.get(name).fail("is not supported; leave it out")
        last = messages[-1]
        continues = last.role == "assistant" and not last.tool_calls
        if continues and last.text != last.text.rstrip():
            body.get("messages").fail("the last one, an assistant's, must not end in white space")
        front = (Message("system", system),) if system else ()
        return cls(front + messages, tools, continues)


@dataclass(frozen=True)
class MessagesRequest:
    """The body of ``POST /v1/messages``; its prompt is to be compared with an earlier message's."""

    generation: GenerationFields
    prompt: MessagesPrompt
    previous_message_id: str | None = None

    @classmethod
    def from_json(cls, body: JsonValue) -> "MessagesRequest":
        """Read a body. Raises RequestError, naming the path, for what cannot be understood."""
        body.get("max_tokens").integer(1)
        generation = GenerationFields.from_json(
            body,
            limit_names=("max_tokens",),
            default_limit=None,
            stop_name="stop_sequences",
            max_stops=MAX_STOP_SEQUENCES,
        )
        _check_thinking(body.get("thinking"))
        output = body.get("output_config")
        if not output.is_null and not output.get("format").is_null:
            generation = replace(generation, grammar=read_format(output.get("format")))
        diagnostics = body.get("diagnostics")
        previous = (
            JsonValue(None) if diagnostics.is_null else diagnostics.get("previous_message_id")
        )
        return cls(
            generation,
            MessagesPrompt.from_json(body),
            None if previous.is_null else previous.string(),
        )


def read_count_request(body: JsonValue) -> tuple[str, MessagesPrompt]:
    """The body of ``count_tokens``: the model, and what it would read."""
    return body.get("model").string(), MessagesPrompt.from_json(body)


def _read_tools(body: JsonValue, markers: Markers) -> ToolUse:
    listed, choice = body.get("tools"), body.get("tool_choice")
    tools = []
    for value in () if listed.is_null else listed.items():
        kind = value.get("type")
        if not kind.is_null and kind.string() != "custom":
            kind.fail("only tools of your own are supported; leave the type out")
        markers.read(value)
        description = value.get("description")
        tools.append(
            Tool(
                read_tool_name(value.get("name")),
                "" if description.is_null else description.string(),
                read_schema(value.get("input_schema")),
                value.get("strict").boolean(False),
            )
        )
    parallel = True
    chosen = ToolChoice()
    if not choice.is_null:
        parallel = not choice.get("disable_parallel_tool_use").boolean(False)
        match choice.get("type").string():
            case "auto" | "none" as mode:
                chosen = ToolChoice(mode)
            case "any":
                chosen = ToolChoice("required")
            case "tool":
                chosen = ToolChoice("required", choice.get("name").string())
            case _:
                choice.get("type").fail("expected one of auto, any, tool, none")
    return ToolUse(tuple(tools), chosen, parallel).check(listed, choice)


def _check_thinking(value: JsonValue) -> None:
    """Thinking is the model's own: it is allowed or not, and never asked of one that cannot."""
    if not value.is_null and value.get("type").string() not in _THINKING:
        value.get("type").fail(f"expected one of {', '.join(_THINKING)}")
