"""Tools for a chat template that knows of none: told in the system message, called in plain text.

The form is the one that most open models with tools were trained on (Hermes): signatures within
``<tools>``, a call as JSON within ``<tool_call>``, its result within ``<tool_response>``.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

_INTRODUCTION = """\
You can call tools. These are their signatures, one a line:
<tools>
{tools}
</tools>
To call one, write a JSON object with its name and arguments, and nothing else, like this:
<tool_call>
{{"name": "the tool's name", "arguments": {{"an argument": "its value"}}}}
</tool_call>"""


def tell_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, Any]]:
    """``messages`` with ``tools``, calls and results as text in them."""
    told = [_tell(message) for message in messages]
    if not tools:
        return told
    signatures = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    introduction = _INTRODUCTION.format(tools=signatures)
    if told and told[0].get("role") == "system":
        content = f"{told[0].get('content', '')}\n\n{introduction}"
        return [told[0] | {"content": content}, *told[1:]]
    return [{"role": "system", "content": introduction}, *told]


def _tell(message: Mapping[str, Any]) -> dict[str, Any]:
    told = {name: value for name, value in message.items() if name != "tool_calls"}
    content = message.get("content")
    if message.get("role") == "tool":
        told["role"] = "user"
        told["content"] = f"<tool_response>\n{content}\n</tool_response>"
    calls = [
        f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>"
        for call in message.get("tool_calls") or ()
    ]
    if calls:
        told["content"] = "\n".join([content, *calls] if content else calls)
    return told
