"""What the APIs' bodies look like, as JSON schemas: for whoever reads ``/openapi.json``.

Readers elsewhere decide what is understood and say what is wrong; this is their description. It has
the fields that are understood; others may be there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
OBJECT: Schema = {"type": "object"}
FLAG: Schema = {"type": "boolean"}


def one_of(*schemas: Schema) -> Schema:
    """Any of several."""
    return {"anyOf": list(schemas)}


def words(*values: str) -> Schema:
    """One of several words."""
    return {"type": "string", "enum": list(values)}


def array(items: Schema, **limits: Any) -> Schema:
    """A list."""
    return {"type": "array", "items": items, **limits}


def obj(properties: Mapping[str, Schema], required: Sequence[str] = ()) -> Schema:
    """An object; what is not required may be null."""
    optional = {
        name: schema if name in required else one_of(schema, {"type": "null"})
        for name, schema in properties.items()
    }
    described: Schema = {"type": "object", "properties": optional}
    return described | {"required": list(required)} if required else described


_NO_OTHERS: Schema = {"additionalProperties": False}


def number(minimum: float, maximum: float) -> Schema:
    """A number in a range."""
    return {"type": "number", "minimum": minimum, "maximum": maximum}


def whole(minimum: int, maximum: int | None = None) -> Schema:
    """A whole number in a range."""
    schema: Schema = {"type": "integer", "minimum": minimum}
    return schema if maximum is None else schema | {"maximum": maximum}


_GENERATION: Mapping[str, Schema] = {
    "temperature": number(0, 2),
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "top_k": whole(-1),
    "min_p": number(0, 1),
    "min_tokens": whole(0, 2**63 - 1),
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    "repetition_penalty": number(0.001, 1000),
    "logit_bias": {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]{1,10}$"},
        "additionalProperties": number(-100, 100),
    },
    "priority": whole(-(2**31) + 1, 2**31 - 1),
    "structured_outputs": obj(
        {
            "json": OBJECT,
            "regex": TEXT,
            "choice": array({"type": "string", "minLength": 1}, minItems=1),
            "grammar": TEXT,
            "json_object": FLAG,
            "disable_fallback": FLAG,
            "disable_any_whitespace": FLAG,
        }
    )
    | _NO_OTHERS,
    "seed": whole(-(2**63), 2**63 - 1),
    "ignore_eos": FLAG,
    "cache_salt": TEXT,
    "kvikk": obj({"ledger": FLAG}) | _NO_OTHERS,
    "stream": FLAG,
}
_STOP = {"type": "string", "minLength": 1, "maxLength": 1024}
_STOPS = one_of(_STOP, array(_STOP, maxItems=4))
_RESPONSE_FORMAT = one_of(
    obj({"type": words("text", "json_object")}, ["type"]),
    obj(
        {"type": words("json_schema"), "json_schema": obj({"name": TEXT, "schema": OBJECT})},
        ["type", "json_schema"],
    ),
)
_STREAM_OPTIONS = obj({"include_usage": FLAG})
_CACHING: Mapping[str, Schema] = {
    "prompt_cache_key": {"type": "string", "maxLength": 1024},
    "prompt_cache_retention": words("in_memory", "24h"),
    "prompt_cache_options": obj(
        {
            "mode": words("implicit", "explicit"),
            "ttl": words("30m", "12h"),
            "comparison_response_id": TEXT,
        }
    ),
}
_NAME = {"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,128}$"}
_FUNCTION = obj({"name": _NAME, "description": TEXT, "parameters": OBJECT}, ["name"])
_TOOL_CALL = obj(
    {
        "id": TEXT,
        "type": words("function"),
        "function": obj({"name": TEXT, "arguments": TEXT}, ["name"]),
    },
    ["function"],
)
_CACHE_CONTROL = obj({"type": words("ephemeral"), "ttl": words("5m", "1h")}, ["type"])


def _content(*parts: Schema) -> Schema:
    return one_of(TEXT, array(one_of(*parts)))


def _part(kind: str, **properties: Schema) -> Schema:
    fields = {"type": words(kind), **properties}
    return obj(fields, ["type", *properties])


_CHAT_CONTENT = _content(_part("text", text=TEXT))
_CHAT_MESSAGE = one_of(
    obj(
        {"role": words("system", "developer", "user"), "content": _CHAT_CONTENT, "name": TEXT},
        ["role", "content"],
    ),
    obj(
        {"role": words("assistant"), "content": _CHAT_CONTENT, "tool_calls": array(_TOOL_CALL)},
        ["role"],
    ),
    obj(
        {"role": words("tool"), "content": _CHAT_CONTENT, "tool_call_id": TEXT},
        ["role", "content", "tool_call_id"],
    ),
)

CHAT_COMPLETION = obj(
    {
        "model": TEXT,
        "messages": array(_CHAT_MESSAGE, minItems=1),
        "max_completion_tokens": whole(1, 2**63 - 1),
        "max_tokens": whole(1, 2**63 - 1),
        "stop": _STOPS,
        "stream_options": _STREAM_OPTIONS,
        "tools": array(
            obj({"type": words("function"), "function": _FUNCTION}, ["type", "function"])
        ),
        "tool_choice": one_of(
            words("none", "auto", "required"),
            obj(
                {"type": words("function"), "function": obj({"name": _NAME}, ["name"])},
                ["type", "function"],
            ),
        ),
        "parallel_tool_calls": FLAG,
        "response_format": _RESPONSE_FORMAT,
        "n": whole(1, 128),
        "logprobs": FLAG,
        "top_logprobs": whole(0, 20),
        "prompt_logprobs": whole(0, 20),
        **_GENERATION,
        **_CACHING,
    },
    ["model", "messages"],
)

COMPLETION = obj(
    {
        "model": TEXT,
        "prompt": one_of(TEXT, array(whole(0, 2**31 - 1))),
        "response_format": _RESPONSE_FORMAT,
        "n": whole(1, 128),
        "best_of": whole(1, 128),
        "echo": FLAG,
        "logprobs": whole(0, 20),
        "prompt_logprobs": whole(0, 20),
        "max_tokens": whole(1, 2**63 - 1),
        "stop": _STOPS,
        "stream_options": _STREAM_OPTIONS,
        **_GENERATION,
    },
    ["model", "prompt"],
)

_ITEM = one_of(
    obj(
        {
            "role": words("user", "system", "developer", "assistant"),
            "content": _content(
                _part("input_text", text=TEXT),
                _part("output_text", text=TEXT),
                _part("refusal", refusal=TEXT),
            ),
        },
        ["role", "content"],
    ),
    _part("function_call", call_id=TEXT, name=TEXT, arguments=TEXT),
    _part("function_call_output", call_id=TEXT, output=_content(_part("input_text", text=TEXT))),
    _part("reasoning", summary=array(_part("summary_text", text=TEXT))),
)
_RESPONSES_PROMPT: Mapping[str, Schema] = {
    "model": TEXT,
    "input": one_of(TEXT, array(_ITEM, minItems=1)),
    "instructions": TEXT,
    "previous_response_id": TEXT,
    "tools": array(
        obj(
            {"type": words("function"), "name": _NAME, "description": TEXT, "parameters": OBJECT},
            ["type", "name"],
        )
    ),
    "tool_choice": words("none", "auto"),
    "parallel_tool_calls": FLAG,
    "text": obj({"format": _part("text"), "verbosity": TEXT}),
    "reasoning": obj({"effort": TEXT, "summary": TEXT}),
    "truncation": words("disabled"),
}
RESPONSE = obj(
    {
        **_RESPONSES_PROMPT,
        "max_output_tokens": whole(1, 2**63 - 1),
        "store": FLAG,
        "metadata": OBJECT,
        "stream_options": OBJECT,
        **_GENERATION,
        **_CACHING,
    },
    ["model", "input"],
)
RESPONSE_COUNT = obj(_RESPONSES_PROMPT, ["input"])

_MARKED = {"cache_control": one_of(_CACHE_CONTROL, {"type": "null"})}
_TEXT_BLOCK = obj({"type": words("text"), "text": TEXT, **_MARKED}, ["type", "text"])
_USER_BLOCK = one_of(
    _TEXT_BLOCK,
    obj(
        {
            "type": words("tool_result"),
            "tool_use_id": TEXT,
            "content": _content(_TEXT_BLOCK),
            "is_error": FLAG,
            **_MARKED,
        },
        ["type", "tool_use_id"],
    ),
)
_ASSISTANT_BLOCK = one_of(
    _TEXT_BLOCK,
    _part("thinking", thinking=TEXT, signature=TEXT),
    obj(
        {"type": words("tool_use"), "id": TEXT, "name": TEXT, "input": OBJECT, **_MARKED},
        ["type", "id", "name", "input"],
    ),
)
_TURN = one_of(
    obj({"role": words("user"), "content": _content(_USER_BLOCK)}, ["role", "content"]),
    obj({"role": words("assistant"), "content": _content(_ASSISTANT_BLOCK)}, ["role", "content"]),
)
_MESSAGES_PROMPT: Mapping[str, Schema] = {
    "model": TEXT,
    "messages": array(_TURN, minItems=1),
    "system": _content(_TEXT_BLOCK),
    "tools": array(
        obj(
            {"name": _NAME, "description": TEXT, "input_schema": OBJECT, **_MARKED},
            ["name", "input_schema"],
        )
    ),
    "tool_choice": obj({"type": words("auto", "none")}, ["type"]),
    "thinking": obj({"type": words("enabled", "disabled", "adaptive")}, ["type"]),
    "cache_control": _CACHE_CONTROL,
}
MESSAGE = obj(
    {
        **_MESSAGES_PROMPT,
        "max_tokens": whole(1, 2**63 - 1),
        "stop_sequences": array(_STOP, maxItems=64),
        "metadata": OBJECT,
        "diagnostics": obj({"previous_message_id": TEXT}),
        **_GENERATION,
    },
    ["model", "messages", "max_tokens"],
)
MESSAGE_COUNT = obj(_MESSAGES_PROMPT, ["model", "messages"])

TOKENIZE = one_of(
    obj(
        {
            "model": TEXT,
            "prompt": TEXT,
            "add_special_tokens": FLAG,
            "return_token_strs": FLAG,
        },
        ["prompt"],
    ),
    obj(
        {
            "model": TEXT,
            "messages": array(_CHAT_MESSAGE, minItems=1),
            "return_token_strs": FLAG,
        },
        ["messages"],
    ),
)
PIN = obj({"request": TEXT, "tokens": whole(1, 2**31 - 1)}, ["request"])
_TOKEN_IDS = array(whole(0, 2**31 - 1), minItems=1)
_SOME_TEXT = {"type": "string", "minLength": 1}
EMBEDDING = obj(
    {
        "model": TEXT,
        "input": one_of(
            _SOME_TEXT,
            _TOKEN_IDS,
            array(_SOME_TEXT, minItems=1, maxItems=2048),
            array(_TOKEN_IDS, minItems=1, maxItems=2048),
        ),
        "encoding_format": words("float", "base64"),
        "dimensions": whole(1),
        "pooling": words("last", "mean"),
        "priority": whole(-(2**31) + 1, 2**31 - 1),
        "cache_salt": TEXT,
        "kvikk": obj({"ledger": FLAG}) | _NO_OTHERS,
    },
    ["model", "input"],
)
LOAD_ADAPTER = obj({"lora_name": TEXT, "lora_path": TEXT}, ["lora_name", "lora_path"])
UNLOAD_ADAPTER = obj({"lora_name": TEXT}, ["lora_name"])
DETOKENIZE = obj({"model": TEXT, "tokens": array(whole(0, 2**31 - 1))}, ["tokens"])
