"""The same said in another form: tools that come and go, keys that change places."""

from tests.audit.talk import (
    POINT,
    Line,
    call,
    chat,
    converse,
    function,
    gemini,
    messages,
    responses,
    text,
    tool,
    tool_result,
    tool_use,
    turns,
)
from tests.audit.variants.record import FIRST, LONG, MORE, RULES, two, variant

# ----------------------------------------------------------------------------------- tools


@variant("tools.order", "$.tools[0]")
def tools_in_another_order_in_messages() -> list[Line]:
    tools = [tool("a"), tool("b"), tool("c")]
    return two(
        messages(RULES, FIRST, tools=tools), messages(RULES, MORE, tools=[tools[2], *tools[:2]])
    )


@variant("tools.order", "$.tools[0].functionDeclarations[1]")
def declarations_in_another_order_in_gemini() -> list[Line]:
    declared = [{"name": name, "description": f"does {name}"} for name in ("x", "y", "z")]
    turned = [declared[0], declared[2], declared[1]]
    return two(
        gemini(RULES, FIRST, tools=[{"functionDeclarations": declared}]),
        gemini(RULES, MORE, tools=[{"functionDeclarations": turned}]),
    )


@variant("tools.set", "$.tools[1]")
def a_tool_is_gone_in_chat() -> list[Line]:
    tools = [function("a"), function("b"), function("c")]
    return two(chat(RULES, FIRST, tools=tools), chat(RULES, MORE, tools=[tools[0], tools[2]]))


@variant("tools.set", "$.toolConfig.tools[0]")
def a_tool_is_new_in_front_in_bedrock() -> list[Line]:
    def config(*names: str) -> dict[str, object]:
        tools = [
            {"toolSpec": {"name": n, "description": n, "inputSchema": {"json": {}}}} for n in names
        ]
        return {"tools": tools}

    system = [{"text": RULES}, POINT]
    return two(
        converse(system, FIRST, toolConfig=config("b", "c")),
        converse(system, MORE, toolConfig=config("a", "b", "c")),
    )


@variant("tools.set", "$.tools[1]")
def another_selection_of_tools() -> list[Line]:
    return two(
        responses(RULES, FIRST, tools=[{"type": "function", "name": n} for n in ("a", "b", "c")]),
        responses(RULES, MORE, tools=[{"type": "function", "name": n} for n in ("a", "d", "c")]),
    )


@variant("tools.definition", "$.tools[1]")
def a_tools_description_changed() -> list[Line]:
    return two(
        chat(RULES, FIRST, tools=[function("a"), function("b", "looks things up")]),
        chat(RULES, MORE, tools=[function("a"), function("b", "looks things up, and people too")]),
    )


@variant("tools.definition", "$.tools[0].input_schema")
def a_tools_schema_changed() -> list[Line]:
    city = {"type": "string", "enum": ["Oslo", "Bergen"]}
    wider = {"type": "string", "enum": ["Oslo", "Bergen", "Bodø"]}
    return two(
        messages(RULES, FIRST, tools=[tool("weather", city=city), tool("b")]),
        messages(RULES, MORE, tools=[tool("weather", city=wider), tool("b")]),
    )


# --------------------------------------------------------------------------- serialisation


@variant("serialization.key_order", "$.tools[0].function")
def a_schemas_keys_in_another_order() -> list[Line]:
    one = {"q": {"type": "string", "description": "words"}}
    other = {"q": {"description": "words", "type": "string"}}
    return two(
        chat(RULES, FIRST, tools=[function("a", **one)]),
        chat(RULES, MORE, tools=[function("a", **other)]),
    )


@variant("serialization.key_order", "$.response_format.json_schema.schema")
def a_schema_of_the_answer_in_another_order() -> list[Line]:
    def form(*names: str) -> dict[str, object]:
        schema = {name: {"type": "string"} for name in names}
        return {"type": "json_schema", "json_schema": {"schema": {"properties": schema}}}

    return two(
        chat(RULES, FIRST, response_format=form("a", "b")),
        chat(RULES, MORE, response_format=form("b", "a")),
    )


@variant("serialization.key_order", "$.messages[0].content")
def a_state_as_json_in_another_order() -> list[Line]:
    story = text("story", 800)
    return two(
        messages(text("a", 1500), [f'{{"place":"hall","story":"{story}"}}', "I see.", "Go."]),
        messages(
            text("a", 1500),
            [f'{{"story":"{story}","place":"hall"}}', "I see.", "Go.", "Ok.", "On."],
        ),
        cached=1500,
    )


@variant("serialization.key_order", "$.messages[3].content")
def a_result_as_json_in_another_order() -> list[Line]:
    def body(result: str, *more: str) -> Line:
        said = [
            {"role": "user", "content": "Look it up"},
            call("call_1", "find", '{"q":"x"}'),
            {"role": "tool", "tool_call_id": "call_1", "content": result},
            *[{"role": "assistant", "content": "Found."}] * bool(more),
            *turns(*more),
        ]
        return chat(text("a", 2000), said)

    data = text("data", 300)
    return two(
        body(f'{{"hits":3,"data":"{data}"}}'),
        body(f'{{"data":"{data}","hits":3}}', "So?"),
        cached=1920,
    )


@variant("serialization.args_reordered", "$.messages[1].content[0].input")
def arguments_in_another_order_between_requests() -> list[Line]:
    def body(arguments: dict[str, object], *more: object) -> Line:
        said = [
            {"role": "user", "content": "Move it"},
            {"role": "assistant", "content": [tool_use("toolu_1", "move", **arguments)]},
            {"role": "user", "content": [tool_result("toolu_1", text("moved", 500), marked=True)]},
            *more,
        ]
        return messages(text("a", 2000), said)

    later = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Thanks"}]
    return two(body({"x": 1, "y": 2}), body({"y": 2, "x": 1}, *later), cached=2000)


@variant("serialization.args_reordered", "$.input[1].arguments")
def arguments_in_another_order_in_responses() -> list[Line]:
    def body(arguments: str, *more: object) -> Line:
        said = [
            {"role": "user", "content": "Move it"},
            {"type": "function_call", "call_id": "call_1", "name": "move", "arguments": arguments},
            {"type": "function_call_output", "call_id": "call_1", "output": text("moved", 500)},
            *more,
        ]
        return responses(text("a", 2000), said)

    later = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Thanks"}]
    return two(body('{"x":1,"y":2}'), body('{"y":2,"x":1}', *later), cached=1920)


@variant("serialization.whitespace", "$.messages[0].content")
def instructions_indented_otherwise() -> list[Line]:
    lines = text("a", LONG).replace(" ba", "\n  ba")
    return two(chat(lines, FIRST), chat(lines.replace("\n  ", "\n"), MORE))


@variant("serialization.whitespace", "$.messages[2].tool_calls[0].function.arguments")
def arguments_with_other_spaces() -> list[Line]:
    def body(arguments: str, *more: object) -> Line:
        said = [
            {"role": "user", "content": "Move it"},
            call("call_1", "move", arguments),
            {"role": "tool", "tool_call_id": "call_1", "content": text("moved", 500)},
            *more,
        ]
        return chat(text("a", 2000), said)

    later = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Thanks"}]
    return two(body('{"x": 1, "y": 2}'), body('{"x":1,"y":2}', *later), cached=1920)


@variant("serialization.whitespace", "$.messages[1].content")
def an_answer_trimmed_between_requests() -> list[Line]:
    said = [text("q", 300), f"{text('r', 600)}\n\n", "So?"]
    trimmed = [said[0], said[1].strip(), "So?", "Yes.", "And?"]
    return two(messages(text("a", 2000), said), messages(text("a", 2000), trimmed), cached=2000)


@variant("serialization.unicode", "$.messages[0].content")
def a_name_in_another_normal_form() -> list[Line]:
    said = [f"Caf\u00e9 {text('q', 600)}", "Yes.", "So?"]
    other = [f"Cafe\u0301 {text('q', 600)}", "Yes.", "So?", "Ok.", "And?"]
    return two(messages(text("a", 2000), said), messages(text("a", 2000), other), cached=2000)


@variant("serialization.unicode", "$.messages[2].tool_calls[0].function.arguments")
def arguments_with_escapes() -> list[Line]:
    def body(arguments: str, *more: object) -> Line:
        said = [
            {"role": "user", "content": "Find it"},
            call("call_1", "find", arguments),
            {"role": "tool", "tool_call_id": "call_1", "content": text("found", 500)},
            *more,
        ]
        return chat(text("a", 2000), said)

    later = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Thanks"}]
    return two(body('{"q":"Tromsø"}'), body('{"q":"Troms\\u00f8"}', *later), cached=1920)
