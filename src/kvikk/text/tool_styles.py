"""Which way a model's family calls tools and marks reasoning, told from its chat template."""

import json
from typing import Any

from kvikk.text.answer_parts import CALL_OPEN, THINK_CLOSE, THINK_OPEN, AnswerStyle, ToolStyle
from kvikk.text.grammars import styled
from kvikk.text.tokenizer import Tokenizer
from kvikk.wire.grammars import GrammarSpec
from kvikk.wire.tools import Tool, ToolUse


def answer_style(template: str, use: ToolUse, rendered: str) -> AnswerStyle:
    """What may be in the answer to a prompt that ``template`` has ``rendered``."""
    return AnswerStyle(
        tools=tool_style(template) if use.offered else None,
        reasons=THINK_CLOSE in template,
        begins_thinking=THINK_CLOSE in template and rendered.rstrip().endswith(THINK_OPEN),
        parallel=use.parallel and use.choice.name is None,
    )


def tool_style(template: str) -> ToolStyle:
    """A family's way to call tools: Hermes' where it has none of its own, and so is told of it."""
    if CALL_OPEN["mistral"] in template:
        return "mistral"
    if CALL_OPEN["hermes"] not in template and "tools" in template and "parameters" in template:
        return "llama"
    return "hermes"


def shown_token_ids(style: AnswerStyle, tokenizer: Tokenizer) -> frozenset[int]:
    """Control tokens that are marks of calls or reasoning, and so belong to an answer's text."""
    names = [] if style.tools is None else [CALL_OPEN[style.tools], "[ARGS]", "</tool_call>"]
    if style.reasons:
        names += [THINK_OPEN, THINK_CLOSE]
    ids = (tokenizer.token_id(name) for name in names)
    return frozenset(token_id for token_id in ids if token_id is not None)


def forced_calls(style: AnswerStyle, use: ToolUse, tokenizer: Tokenizer) -> GrammarSpec | None:
    """A grammar of answers that call a tool, where the request says that one must be called."""
    if use.choice.mode != "required" or style.tools is None:
        return None
    tools = [tool for tool in use.tools if use.choice.name in (None, tool.name)]
    word = "parameters" if style.tools == "llama" else "arguments"
    one_call = {"anyOf": [_call(tool, word) for tool in tools]}
    if style.tools == "mistral":
        calls: dict[str, Any] = {"type": "array", "items": one_call, "minItems": 1}
        if not style.parallel:
            calls["maxItems"] = 1
        body = f"start: {_mark(CALL_OPEN['mistral'], tokenizer)} calls\ncalls: {_json(calls)}"
    elif style.tools == "llama":
        body = f"start: call\ncall: {_json(one_call)}"
    else:
        opening, close = (_mark(mark, tokenizer) for mark in (CALL_OPEN["hermes"], "</tool_call>"))
        more = ' ("\\n" tagged)*' if style.parallel else ""
        body = (
            f'start: tagged{more}\ntagged: {opening} "\\n" call "\\n" {close}\n'
            f"call: {_json(one_call)}"
        )
    if style.begins_thinking:
        thought = _mark(THINK_CLOSE, tokenizer)
        body = body.replace("start: ", f"start: /(.|\\n)*/ {thought} /\\n*/ ", 1)
    return GrammarSpec("grammar", body, "tool_choice")


def _call(tool: Tool, word: str) -> dict[str, Any]:
    """The JSON schema of one tool's calls."""
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, word: tool.parameters or {"type": "object"}},
        "required": ["name", word],
        "additionalProperties": False,
    }


def _mark(mark: str, tokenizer: Tokenizer) -> str:
    """A mark in Lark's notation: a control token by its id, else its text."""
    token_id = tokenizer.token_id(mark)
    if token_id is not None and tokenizer.is_control(token_id):
        return f"<[{token_id}]>"
    return json.dumps(mark)


def _json(schema: dict[str, Any]) -> str:
    return f"%json {json.dumps(styled(schema))}"
