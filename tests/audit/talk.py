"""Requests in every API's words, short to write: for logs that tests make up."""

from collections.abc import Sequence
from typing import Any

from tests.audit.cases import filler

Line = dict[str, Any]
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}


def text(name: str, num_words: int) -> str:
    """So many words that nobody else has."""
    return filler(name, num_words)


def block(words: str, *, ttl: str = "", marked: bool = False) -> dict[str, Any]:
    """An Anthropic text block."""
    control: dict[str, Any] = {"type": "ephemeral", **({"ttl": ttl} if ttl else {})}
    return {"type": "text", "text": words, **({"cache_control": control} if marked or ttl else {})}


def turns(*said: Any) -> list[dict[str, Any]]:
    """User and assistant in turn, the user first."""
    roles = ("user", "assistant")
    return [{"role": roles[index % 2], "content": one} for index, one in enumerate(said)]


def messages(
    system: Any, said: Sequence[Any], model: str = "claude-sonnet-4-5", **more: Any
) -> Line:
    """An Anthropic body; a system text that is a string is marked, and the newest turn with it."""
    shown = [block(system, marked=True)] if isinstance(system, str) else system
    history = list(said) if said and isinstance(said[0], dict) else turns(*said)
    newest = history[-1]["content"]
    if isinstance(system, str) and isinstance(newest, str) and "cache_control" not in more:
        history = [*history[:-1], {**history[-1], "content": [block(newest, marked=True)]}]
    body = {"model": model, "max_tokens": 64, "system": shown, "messages": history, **more}
    return {"request": body, "provider": "anthropic", "api": "messages"}


def chat(system: Any, said: Sequence[Any], model: str = "gpt-4.1", **more: Any) -> Line:
    """A Chat Completions body."""
    history = list(said) if said and isinstance(said[0], dict) else turns(*said)
    first = [] if system is None else [{"role": "system", "content": system}]
    body = {"model": model, "messages": [*first, *history], **more}
    return {"request": body, "provider": "openai", "api": "chat_completions"}


def responses(instructions: str, said: Sequence[Any], model: str = "gpt-5.1", **more: Any) -> Line:
    """A Responses body."""
    history = list(said) if said and isinstance(said[0], dict) else turns(*said)
    body = {"model": model, "instructions": instructions, "input": history, **more}
    return {"request": body, "provider": "openai", "api": "responses"}


def gemini(system: str, said: Sequence[Any], model: str = "gemini-2.5-flash", **more: Any) -> Line:
    """A generateContent body."""
    roles = ("user", "model")
    contents = [
        {"role": roles[index % 2], "parts": [{"text": one}]} for index, one in enumerate(said)
    ]
    body = {
        "model": model,
        "systemInstruction": {"parts": [{"text": system}]},
        "contents": contents,
        **more,
    }
    return {"request": body, "provider": "gemini", "api": "generate_content"}


def converse(
    system: list[Any],
    said: Sequence[Any],
    model: str = "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
    **more: Any,
) -> Line:
    """A Bedrock Converse body."""
    roles = ("user", "assistant")
    history = [
        {"role": roles[index % 2], "content": [{"text": one}] if isinstance(one, str) else one}
        for index, one in enumerate(said)
    ]
    body = {"modelId": model, "system": system, "messages": history, **more}
    return {"request": body, "provider": "bedrock", "api": "converse"}


POINT = {"cachePoint": {"type": "default"}}


def sent(line: Line, at_s: float, **more: Any) -> Line:
    """A line with its time, and what else is known."""
    return {**line, "at_s": at_s, "first_byte_s": at_s + 0.8, **more}


def read(line: Line, total: int, cached: int, written: int | None = None) -> Line:
    """A line with the provider's counts, in the words of its API."""
    new = total - cached
    match line["api"]:
        case "messages":
            wrote = new if written is None else written
            usage = {
                "input_tokens": new - wrote,
                "cache_read_input_tokens": cached,
                "cache_creation_input_tokens": wrote,
                "output_tokens": 5,
            }
        case "converse":
            wrote = new if written is None else written
            usage = {
                "inputTokens": new - wrote,
                "cacheReadInputTokens": cached,
                "cacheWriteInputTokens": wrote,
                "outputTokens": 5,
            }
        case "responses":
            usage = {
                "input_tokens": total,
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": 5,
            }
        case "generate_content":
            counts = {"promptTokenCount": total, "candidatesTokenCount": 5}
            usage = {**counts, **({"cachedContentTokenCount": cached} if cached else {})}
        case _:
            usage = {
                "prompt_tokens": total,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": cached},
            }
    return {**line, "response": {**line.get("response", {}), "usage": usage}}


def function(name: str, description: str = "", **properties: Any) -> dict[str, Any]:
    """A tool of Chat Completions."""
    schema = {"type": "object", "properties": properties or {"q": {"type": "string"}}}
    inner = {"name": name, "description": description or f"use {name}", "parameters": schema}
    return {"type": "function", "function": inner}


def tool(name: str, description: str = "", **properties: Any) -> dict[str, Any]:
    """A tool of Messages."""
    schema = {"type": "object", "properties": properties or {"q": {"type": "string"}}}
    return {"name": name, "description": description or f"use {name}", "input_schema": schema}


def tool_use(key: str, name: str, **arguments: Any) -> dict[str, Any]:
    """A call, in Messages."""
    return {"type": "tool_use", "id": key, "name": name, "input": arguments}


def tool_result(key: str, content: Any, *, marked: bool = False) -> dict[str, Any]:
    """A call's result, in Messages."""
    found = {"type": "tool_result", "tool_use_id": key, "content": content}
    return {**found, **(EPHEMERAL if marked else {})}


def call(key: str, name: str, arguments: str) -> dict[str, Any]:
    """A message with one call, in Chat Completions."""
    inner = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": key, "type": "function", "function": inner}],
    }
