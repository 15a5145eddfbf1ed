"""Misses of every class that no report has: other APIs, other places, other words.

Each variant is the lines of a log, and what is to be found in which request, where.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.audit.talk import (
    EPHEMERAL,
    POINT,
    Line,
    block,
    call,
    chat,
    converse,
    function,
    gemini,
    messages,
    read,
    responses,
    sent,
    text,
    tool,
    tool_result,
    tool_use,
    turns,
)

LONG = 3000


@dataclass(frozen=True)
class Variant:
    """``lines`` of a log; ``cause`` at ``location`` in ``request``; None: nothing at all."""

    name: str
    cause: str | None
    location: str
    make: Callable[[], list[Line]]
    request: int = 1


VARIANTS: list[Variant] = []


def variant(cause: str | None, location: str = "$", request: int = 1) -> Callable[..., None]:
    """Add the decorated maker of lines."""

    def add(make: Callable[[], list[Line]]) -> None:
        VARIANTS.append(Variant(make.__name__, cause, location, make, request))

    return add


def two(
    first: Line, second: Line, total: int = LONG, cached: int = 0, gap_s: float = 20
) -> list[Line]:
    """Two requests with the provider's counts, some seconds apart."""
    return [read(sent(first, 100), total, 0), read(sent(second, 100 + gap_s), total + 20, cached)]


def guess(first: Line, second: Line, gap_s: float = 20) -> list[Line]:
    """Two requests of which the provider's counts are not in the log."""
    return [sent(first, 100), sent(second, 100 + gap_s)]


RULES = text("rules", LONG)
FIRST, MORE = ["What first?"], ["What first?", "This.", "And then?"]

# ------------------------------------------------------------------------- volatile values


@variant("volatile_value.timestamp", "$.instructions")
def a_clock_at_the_end_of_instructions_with_a_long_history() -> list[Line]:
    history = [text("log", 2000), "Noted.", "Go on."]
    return two(
        responses(f"{text('a', 500)} Now: 2026-11-30T09:15:02Z", history),
        responses(f"{text('a', 500)} Now: 2026-11-30T09:15:41Z", [*history, "Done.", "More."]),
    )


@variant("volatile_value.timestamp", "$.system[0]")
def a_weekday_in_bedrock() -> list[Line]:
    return two(
        converse([{"text": f"Today is Monday. {RULES}"}, POINT], FIRST),
        converse([{"text": f"Today is Tuesday. {RULES}"}, POINT], FIRST),
    )


@variant("volatile_value.timestamp", "$.systemInstruction")
def seconds_since_1970_in_gemini() -> list[Line]:
    return two(gemini(f"t=1764460800 {RULES}", FIRST), gemini(f"t=1764460862 {RULES}", MORE))


@variant("volatile_value.timestamp", "$.tools[0].description")
def a_clock_in_a_tool() -> list[Line]:
    def tools(clock: str) -> list[object]:
        return [tool("run", f"Runs a command. The machine's time is {clock}."), tool("read")]

    return two(
        messages(RULES, FIRST, tools=tools("10:41:07")),
        messages(RULES, MORE, tools=tools("10:43:55")),
    )


@variant("volatile_value.timestamp", "$.messages[0].content")
def an_old_turn_is_rendered_with_the_time_of_now() -> list[Line]:
    first = f"[10:41] {text('question', 600)}"
    again = f"[10:52] {text('question', 600)}"
    return two(
        messages(text("a", 1500), [first]), messages(text("a", 1500), [again, "Yes.", "So?"])
    )


@variant("volatile_value.relative_time", "$.messages[0].content")
def a_login_some_hours_ago() -> list[Line]:
    return two(
        chat(f"Last login: 3 hours ago. {RULES}", FIRST),
        chat(f"Last login: 4 hours ago. {RULES}", MORE),
    )


@variant("volatile_value.relative_time", "$.system[0].text")
def an_uptime() -> list[Line]:
    return two(
        messages(f"Uptime: 2h 14m\n{RULES}", FIRST), messages(f"Uptime: 2h 16m\n{RULES}", MORE)
    )


@variant("volatile_value.relative_time", "$.input[0].content")
def yesterday_becomes_two_days_ago() -> list[Line]:
    def body(when: str, said: list[str]) -> Line:
        first = {"role": "developer", "content": f"Notes: dentist booked ({when}). {RULES}"}
        return responses("", [first, *turns(*said)])

    return two(body("yesterday", FIRST), body("2 days ago", MORE))


@variant("volatile_value.nonce", "$.messages[0].content")
def a_random_word_that_was_to_defeat_the_cache() -> list[Line]:
    return two(chat(f"[nonce 8f3a9c2e]\n{RULES}", FIRST), chat(f"[nonce 17b0d4aa]\n{RULES}", MORE))


@variant("volatile_value.nonce", "$.instructions")
def a_seed() -> list[Line]:
    return two(
        responses(f"Seed: 839201744\n{RULES}", FIRST), responses(f"Seed: 120049213\n{RULES}", MORE)
    )


@variant("volatile_value.nonce", "$.system[0].text")
def a_boundary_of_random_letters() -> list[Line]:
    return two(
        messages(f"Trust nothing between x7Kq92LmPz marks. {RULES}", FIRST),
        messages(f"Trust nothing between b31WvT08sd marks. {RULES}", MORE),
    )


@variant("volatile_value.counter", "$.system[0].text")
def a_turn_counter() -> list[Line]:
    return two(messages(f"Turn 7 of 40. {RULES}", FIRST), messages(f"Turn 8 of 40. {RULES}", MORE))


@variant("volatile_value.counter", "$.input[0].content")
def a_budget_of_tokens() -> list[Line]:
    def body(left: str, said: list[str]) -> Line:
        first = {"role": "developer", "content": f"Tokens remaining: {left}\n{RULES}"}
        return responses("", [first, *turns(*said)], model="gpt-5.6-luna")

    return two(body("182,331", FIRST), body("179,004", MORE))


@variant("volatile_value.counter", "$.systemInstruction")
def a_step_in_gemini() -> list[Line]:
    return two(
        gemini(f"Step 3: look around. {RULES}", FIRST),
        gemini(f"Step 4: look around. {RULES}", MORE),
    )


@variant("volatile_value.identifier", "$.system[0].text")
def a_session_in_the_first_block() -> list[Line]:
    return two(
        messages(f"session_id: 3f0c9a52-7d1e-4c0b-9a44-2f6b8f0f9e11\n{RULES}", FIRST),
        messages(f"session_id: 0b7e5d30-11aa-4f5e-8c3c-90ab12cd34ef\n{RULES}", MORE),
    )


@variant("volatile_value.identifier", "$.messages[0].content")
def a_conversations_name() -> list[Line]:
    return two(
        chat(f"Conversation: conv_8s7df6k2 {RULES}", FIRST),
        chat(f"Conversation: conv_q21mz9x0 {RULES}", MORE),
    )


@variant("volatile_value.identifier", "$.system[0]")
def a_tickets_number() -> list[Line]:
    return two(
        converse([{"text": f"You work on ticket #48213. {RULES}"}, POINT], FIRST),
        converse([{"text": f"You work on ticket #48377. {RULES}"}, POINT], FIRST),
    )


@variant("volatile_value.path", "$.system[0].text")
def a_working_directory() -> list[Line]:
    return two(
        messages(f"Working directory: /home/ann/shop\n{RULES}", FIRST),
        messages(f"Working directory: /tmp/wt-17/shop\n{RULES}", MORE),
    )


@variant("volatile_value.path", "$.instructions")
def the_state_of_files() -> list[Line]:
    return two(
        responses(f"Git status:\n M src/a.py\n\n{RULES}", FIRST),
        responses(f"Git status:\n M src/a.py\n M src/b.py\n?? notes.txt\n\n{RULES}", MORE),
    )


@variant("volatile_value.path", "$.system[0].text")
def one_more_file_that_has_changed() -> list[Line]:
    return two(
        messages(f"gitStatus:\n M src/a.py\n?? notes.txt\n\n{RULES}", FIRST),
        messages(f"gitStatus:\n M src/a.py\n M src/c.py\n?? notes.txt\n\n{RULES}", MORE),
    )


@variant("volatile_value.path", "$.messages[0].content")
def a_branch() -> list[Line]:
    return two(
        chat(f"Current branch: main\n{RULES}", FIRST),
        chat(f"Current branch: fix-login\n{RULES}", MORE),
    )


@variant("volatile_value.user", "$.system[0].text")
def a_person_by_name() -> list[Line]:
    return two(
        messages(f"You are helping Ann Lee. {RULES}", ["Hello"]),
        messages(f"You are helping Bob Stone. {RULES}", ["Good day"]),
    )


@variant("volatile_value.user", "$.messages[0].content")
def a_persons_address() -> list[Line]:
    return two(
        chat(f"Signed in: ann@example.org. {RULES}", FIRST),
        chat(f"Signed in: bob@example.org. {RULES}", ["Who?"]),
    )


@variant("volatile_value.user", "$.systemInstruction")
def a_user_by_name_in_gemini() -> list[Line]:
    return two(gemini(f"User: Ann\n{RULES}", FIRST), gemini(f"User: Robert\n{RULES}", FIRST))


# --------------------------------------------------------------------------------- context


@variant("context.injected_before_history", "$.messages[1].content")
def retrieved_documents_ahead_of_the_history() -> list[Line]:
    def body(found: str, said: list[str]) -> Line:
        return chat(text("a", 1200), [{"role": "system", "content": found}, *turns(*said)])

    history = [text("q", 900), text("r", 900), "So?"]
    return two(
        body(text("docs one", 400), history),
        body(text("docs two", 400), [*history, "Yes.", "And?"]),
        cached=1024,
    )


@variant("context.injected_before_history", "$.input[0].content")
def fresh_context_in_the_first_user_message() -> list[Line]:
    def body(found: str, said: list[str]) -> Line:
        return responses(text("a", 1200), turns(found, "Ok.", *said))

    history = [text("q", 900), text("r", 900), "So?"]
    return two(
        body(f"Relevant pages: {text('one', 300)}", history),
        body(f"Relevant pages: {text('two', 300)}", [*history, "Yes.", "And?"]),
        cached=1024,
    )


@variant("context.injected_before_history", "$.messages[0].content")
def memories_put_in_front() -> list[Line]:
    history = [text("q", 900), text("r", 900), "So?"]
    memory = turns(f"Memories: {text('m', 100)}", "Thanks.")
    return two(
        messages(text("a", 1500), history),
        messages(text("a", 1500), [*memory, *turns(*history, "Yes.", "And?")]),
        cached=1500,
    )


@variant("context.injected_before_history", "$.messages[0].content")
def the_question_in_front_of_the_handbook() -> list[Line]:
    return two(
        chat(None, [f"How long may I give something back? {RULES}"]),
        chat(None, [f"Who pays for a repair in the second year? {RULES}"]),
    )


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


# --------------------------------------------------------------------------------- history


@variant("history.replay_differs", "$.messages[0].content")
def a_reminder_of_the_live_turn_is_not_replayed() -> list[Line]:
    live = [block(text("q", 400)), block(f"<reminder>{text('m', 200)}</reminder>", marked=True)]
    return two(
        messages(text("a", 2000), turns(live)),
        messages(text("a", 2000), turns(text("q", 400), "Yes.", [block("So?", marked=True)])),
        cached=2000,
    )


@variant("history.replay_differs", "$.messages[1].content")
def a_template_around_the_live_turn_in_chat() -> list[Line]:
    return two(
        chat(
            text("a", 2000), ["Answer this question as JSON.\nQuestion: what is rule nine about?"]
        ),
        chat(
            text("a", 2000),
            ["what is rule nine about?", "{}", "Answer this question as JSON.\nQuestion: why?"],
        ),
        cached=1920,
    )


@variant("history.replay_differs", "$.messages[2].content[0]")
def results_in_the_order_in_which_they_came() -> list[Line]:
    uses = [tool_use("toolu_1", "ls", dir="a"), tool_use("toolu_2", "ls", dir="b")]
    results = [tool_result("toolu_1", text("x", 300)), tool_result("toolu_2", text("y", 300))]

    def body(order: list[Line], *more: object) -> Line:
        asked = {"role": "user", "content": "Look"}
        used = {"role": "assistant", "content": uses}
        order = [order[0], {**order[1], **EPHEMERAL}]
        return messages(text("a", 2000), [asked, used, {"role": "user", "content": order}, *more])

    later = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Thanks"}]
    return two(body([*results]), body(results[::-1], *later), cached=2000)


@variant("history.ids_regenerated", "$.input[1].id")
def a_new_id_for_an_old_thought() -> list[Line]:
    def body(key: str, *more: object) -> Line:
        reasoning = {"type": "reasoning", "id": key, "encrypted_content": text("e", 300)}
        made = {"type": "function_call", "call_id": "c", "name": "ls", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c", "output": text("f", 300)}
        asked = {"role": "user", "content": "Look"}
        return responses(text("a", 2000), [asked, reasoning, made, output, *more])

    return two(body("rs_9a8b7c"), body("rs_1f2e3d", *turns("x", "Two.", "So?")[1:]), cached=1920)


@variant("history.rewritten", "$.messages[3].content")
def an_old_result_is_cleared_in_chat() -> list[Line]:
    def body(result: str, *more: str) -> Line:
        said = [
            {"role": "user", "content": "Look it up"},
            call("call_1", "find", '{"q":"x"}'),
            {"role": "tool", "tool_call_id": "call_1", "content": result},
            {"role": "assistant", "content": text("answer", 300)},
            *turns("So?", *more),
        ]
        return chat(text("a", 2000), said)

    return two(
        body(text("found", 900)), body("[cleared to save space]", "Yes.", "And?"), cached=1920
    )


@variant("history.rewritten", "$.messages[0].content")
def a_history_becomes_its_summary() -> list[Line]:
    said = [text("q", 1500), text("r", 1500), text("q2", 900), text("r2", 900), "So?"]
    summary = f"Summary of the conversation so far: {text('short', 120)}"
    return two(
        messages(text("a", 2000), said),
        messages(text("a", 2000), [summary, "Understood.", "And?"]),
        total=6800,
        cached=2000,
    )


@variant("history.rewritten", "$.input[1].content")
def an_answer_is_shortened_in_place() -> list[Line]:
    said = [text("q", 300), text("r", 900), text("q2", 300), "Yes.", "So?"]
    shorter = [said[0], f"{text('r', 900)[:200]} [truncated]", *said[2:], "Ok.", "And?"]
    return two(responses(text("a", 2000), said), responses(text("a", 2000), shorter), cached=1920)


@variant("history.trimmed_front", "$.messages[1].content")
def a_window_slides_in_chat() -> list[Line]:
    said = [text(f"s{index}", 300) for index in range(9)]
    return two(
        chat(text("a", 1500), said), chat(text("a", 1500), [*said[2:], "Yes.", "And?"]), cached=1408
    )


@variant("history.trimmed_front", "$.messages[0].content")
def the_first_messages_go_in_messages() -> list[Line]:
    said = [text(f"s{index}", 300) for index in range(7)]
    return two(
        messages(text("a", 1500), said),
        messages(text("a", 1500), [*said[4:], "Yes.", "And?"]),
        cached=1500,
    )


@variant("history.trimmed_front", "$.input[1].content")
def a_window_slides_behind_the_first_message() -> list[Line]:
    said = [text(f"s{index}", 300) for index in range(9)]
    return two(
        responses(text("a", 1500), said),
        responses(text("a", 1500), [said[0], *said[3:], "Yes.", "And?"]),
        cached=1408,
    )


@variant("history.ids_regenerated", "$.messages[1].content[0].id")
def new_ids_in_messages() -> list[Line]:
    def body(key: str, *more: object) -> Line:
        said = [
            {"role": "user", "content": "Look"},
            {"role": "assistant", "content": [tool_use(key, "ls", dir=".")]},
            {"role": "user", "content": [tool_result(key, text("files", 700), marked=True)]},
            *more,
        ]
        return messages(text("a", 2000), said)

    later = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Thanks"}]
    return two(body("toolu_9a8b7c"), body("toolu_1f2e3d", *later), cached=2000)


@variant("history.ids_regenerated", "$.messages[2].tool_calls[0].id")
def new_ids_in_chat() -> list[Line]:
    def body(key: str, *more: object) -> Line:
        result = {"role": "tool", "tool_call_id": key, "content": text("files", 700)}
        said = [{"role": "user", "content": "Look"}, call(key, "ls", "{}"), result, *more]
        return chat(text("a", 2000), said)

    later = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Thanks"}]
    return two(body("call_9a8b7c"), body("call_1f2e3d", *later), cached=1920)


@variant("history.thinking_dropped", "$.messages[1].content[0]")
def thoughts_go_when_a_new_turn_begins() -> list[Line]:
    thought = {"type": "thinking", "thinking": text("hm", 400), "signature": "c2ln"}
    use = tool_use("toolu_1", "ls", dir=".")
    result = tool_result("toolu_1", text("f", 300), marked=True)
    asked = {"role": "user", "content": "Look"}
    done = [{"role": "assistant", "content": "Two files."}, {"role": "user", "content": "So?"}]
    return two(
        messages(
            text("a", 2000),
            [
                asked,
                {"role": "assistant", "content": [thought, use]},
                {"role": "user", "content": [result]},
            ],
        ),
        messages(
            text("a", 2000),
            [
                asked,
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [result]},
                *done,
            ],
        ),
        cached=2000,
    )


@variant("history.thinking_dropped", "$.input[1]")
def reasoning_items_go_in_responses() -> list[Line]:
    reasoning = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "encrypted_content": text("e", 200),
    }
    made = {"type": "function_call", "call_id": "call_1", "name": "ls", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": text("f", 300)}
    asked = {"role": "user", "content": "Look"}
    done = turns("x", "Two files.", "So?")[1:]
    return two(
        responses(text("a", 2000), [asked, reasoning, made, output]),
        responses(text("a", 2000), [asked, made, output, *done]),
        cached=1920,
    )


@variant("history.images_changed", "$.messages[1].content[1]")
def a_picture_is_encoded_anew_in_chat() -> list[Line]:
    def body(picture: str, *more: str) -> Line:
        shown = {
            "type": "image_url",
            "image_url": {"url": f"data:image/png;base64,{picture * 300}"},
        }
        first = [{"type": "text", "text": "What is this?"}, shown]
        return chat(text("a", 2000), [*turns(first, *more)])

    return two(body("iVBORw0KGgo"), body("iVBORw0KGgp", "A cat.", "Sure?"), cached=1920)


@variant("history.images_changed", "$.messages[1].content[0]")
def a_signed_address_of_a_picture_changes() -> list[Line]:
    def body(sign: str, *more: str) -> Line:
        address = f"https://files.example/1.png?sig={sign}"
        shown = {"type": "image_url", "image_url": {"url": address}}
        return chat(text("a", 2000), [*turns([shown, {"type": "text", "text": "And?"}], *more)])

    return two(body("a81f09d2"), body("77be31c0", "A cat.", "Sure?"), cached=1920)


@variant("history.images_changed", "$.messages[0].content[0]")
def a_picture_is_taken_out_of_history() -> list[Line]:
    picture = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0" * 200},
    }
    words = block(text("q", 300))
    return two(
        messages(text("a", 2000), turns([picture, words], "A cat.", "Sure?")),
        messages(text("a", 2000), turns([words], "A cat.", "Sure?", "Yes.", "And?")),
        cached=2000,
    )


@variant("history.images_changed", "$.messages[2].content[0].content[0].source.data")
def a_screenshot_in_a_result_is_taken_again() -> list[Line]:
    def body(picture: str, *more: object) -> Line:
        source = {"type": "base64", "media_type": "image/png", "data": picture * 300}
        shown = [{"type": "image", "source": source}, {"type": "text", "text": "the screen"}]
        said = [
            {"role": "user", "content": "Look"},
            {"role": "assistant", "content": [tool_use("toolu_1", "screen")]},
            {"role": "user", "content": [tool_result("toolu_1", shown, marked=True)]},
            *more,
        ]
        return messages(text("a", 2000), said)

    later = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Thanks"}]
    return two(body("iVBORw0K"), body("iVBORw0L", *later), cached=2000)


@variant("history.replay_differs", "$.messages[3].content")
def context_of_the_live_turn_is_not_kept() -> list[Line]:
    history = [text("q", 500), text("r", 500)]
    found, question = f"Documents: {text('docs', 400)}", f"Why is that so? {text('w', 20)}"
    said = [
        *turns(*history),
        {"role": "user", "content": found},
        {"role": "user", "content": question},
    ]
    later = [*turns(*history, question, "So.", "And?")]
    return two(chat(text("a", 1200), said), chat(text("a", 1200), later), cached=2048)


# ------------------------------------------------------------------------------ parameters


@variant("params.effort", "$.reasoning.effort")
def less_effort_in_responses() -> list[Line]:
    return two(
        responses(RULES, FIRST, reasoning={"effort": "high"}),
        responses(RULES, MORE, reasoning={"effort": "low"}),
    )


@variant("params.effort", "$.reasoning_effort")
def effort_asked_for_the_first_time_in_chat() -> list[Line]:
    return two(
        chat(RULES, FIRST, model="gpt-5"), chat(RULES, MORE, model="gpt-5", reasoning_effort="low")
    )


@variant("params.effort", "$.output_config.effort")
def effort_without_counts_in_the_log() -> list[Line]:
    said = [[block(text("q", 900), marked=True)]]
    more = [text("q", 900), "Yes.", [block("So?", marked=True)]]
    return guess(
        messages(RULES, said, output_config={"effort": "high"}),
        messages(RULES, more, output_config={"effort": "low"}),
    )


@variant("params.thinking", "$.thinking.budget_tokens")
def another_budget_for_thinking() -> list[Line]:
    said = [[block(text("q", 900), marked=True)]]
    more = [text("q", 900), "Yes.", [block("So?", marked=True)]]
    return two(
        messages(RULES, said, thinking={"type": "enabled", "budget_tokens": 4000}),
        messages(RULES, more, thinking={"type": "enabled", "budget_tokens": 8000}),
        total=4000,
        cached=3000,
    )


@variant("params.thinking", "$.additionalModelRequestFields.thinking")
def thinking_switched_on_in_bedrock() -> list[Line]:
    long = [{"text": RULES}, POINT]
    first = [[{"text": text("q", 900)}, POINT]]
    more = [[{"text": text("q", 900)}], "Yes.", [{"text": "So?"}, POINT]]
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 2000}}
    return two(
        converse(long, first),
        converse(long, more, additionalModelRequestFields=thinking),
        total=4000,
        cached=3000,
    )


@variant("params.thinking", "$.generationConfig.thinkingConfig")
def thinking_switched_off_in_gemini() -> list[Line]:
    return two(
        gemini(RULES, FIRST, generationConfig={"thinkingConfig": {"thinkingBudget": 1024}}),
        gemini(RULES, MORE, generationConfig={"thinkingConfig": {"thinkingBudget": 0}}),
    )


@variant("params.tool_choice", "$.tool_choice")
def a_tool_is_forced_in_messages() -> list[Line]:
    said = [[block(text("q", 900), marked=True)]]
    more = [text("q", 900), "Yes.", [block("So?", marked=True)]]
    tools = [tool("a"), tool("b")]
    return two(
        messages(RULES, said, tools=tools, tool_choice={"type": "auto"}),
        messages(RULES, more, tools=tools, tool_choice={"type": "tool", "name": "a"}),
        total=4000,
        cached=3000,
    )


@variant("params.tool_choice", "$.tool_choice")
def a_tool_is_required_in_chat() -> list[Line]:
    tools = [function("a"), function("b")]
    return two(
        chat(RULES, FIRST, tools=tools), chat(RULES, MORE, tools=tools, tool_choice="required")
    )


@variant("params.response_schema", "$.response_format")
def another_schema_in_chat() -> list[Line]:
    def form(name: str) -> dict[str, object]:
        schema = {"type": "object", "properties": {name: {"type": "string"}}}
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}

    return two(
        chat(RULES, FIRST, response_format=form("title")),
        chat(RULES, MORE, response_format=form("year")),
    )


@variant("params.response_schema", "$.text.format")
def plain_text_after_a_schema_in_responses() -> list[Line]:
    return two(
        responses(RULES, FIRST, text={"format": {"type": "json_object"}}),
        responses(RULES, MORE, text={"format": {"type": "text"}}),
    )


@variant("params.verbosity", "$.text.verbosity")
def shorter_answers_in_responses() -> list[Line]:
    return two(
        responses(RULES, FIRST, text={"verbosity": "high"}),
        responses(RULES, MORE, text={"verbosity": "low"}),
    )


@variant("params.verbosity", "$.verbosity")
def shorter_answers_in_chat() -> list[Line]:
    return two(chat(RULES, FIRST, model="gpt-5"), chat(RULES, MORE, model="gpt-5", verbosity="low"))


@variant("params.other", "$.parallel_tool_calls")
def parallel_calls_switched_off() -> list[Line]:
    return two(responses(RULES, FIRST), responses(RULES, MORE, parallel_tool_calls=False))


@variant("params.other", "$.speed")
def a_faster_service() -> list[Line]:
    return two(messages(RULES, FIRST), messages(RULES, MORE, speed="fast"))


# ----------------------------------------------------------------------------------- model


@variant("model.switched", "$.model")
def a_smaller_model_for_the_next_turn() -> list[Line]:
    return two(chat(RULES, FIRST, model="gpt-5"), chat(RULES, MORE, model="gpt-5-mini"))


@variant("model.switched", "$.model")
def a_name_with_a_date() -> list[Line]:
    return two(
        messages(RULES, FIRST, model="claude-sonnet-4-5"),
        messages(RULES, MORE, model="claude-sonnet-4-5-20250929"),
    )


@variant("model.switched", "$.model")
def a_gateway_answers_with_another_model() -> list[Line]:
    first, second = two(chat(RULES, FIRST, model="best"), chat(RULES, MORE, model="best"))
    first["response"]["model"], second["response"]["model"] = "gpt-4.1", "gpt-4.1-mini"
    return [first, second]


@variant("model.switched", "$.model", request=2)
def another_model_after_a_failure() -> list[Line]:
    first, second = messages(RULES, FIRST), messages(RULES, MORE)
    fallback = messages(RULES, MORE, model="claude-haiku-4-5")
    return [
        read(sent(first, 100), LONG, 0),
        {**sent(second, 110), "status": 529},
        read(sent(fallback, 112), LONG + 20, 0),
    ]


# --------------------------------------------------------------------------------- minimum


@variant("below_minimum", "$.messages[0].content")
def nine_hundred_tokens_for_gpt_4o() -> list[Line]:
    system = text("a", 850)
    return two(
        chat(system, FIRST, model="gpt-4o"), chat(system, ["Other?"], model="gpt-4o"), total=900
    )


@variant("below_minimum", "$.instructions")
def less_than_the_first_boundary_of_gpt_5_5() -> list[Line]:
    system = text("a", 1500)
    return two(
        responses(system, FIRST, model="gpt-5.5", prompt_cache_key="k"),
        responses(system, ["Other?"], model="gpt-5.5", prompt_cache_key="k"),
        total=1550,
    )


@variant("below_minimum", "$.system[0]")
def a_short_point_in_bedrock() -> list[Line]:
    model = "us.anthropic.claude-haiku-4-5-20251001-v1:0"
    system = [{"text": text("a", 2500)}, POINT]
    lines = [
        converse(system, FIRST, model=model),
        converse(system, ["Other?"], model=model),
    ]
    return [read(sent(line, 100 + 20 * at), 2520, 0, 0) for at, line in enumerate(lines)]


@variant("below_minimum", "$.systemInstruction")
def three_thousand_tokens_for_gemini_pro() -> list[Line]:
    return two(
        gemini(RULES, FIRST, model="gemini-2.5-pro"),
        gemini(RULES, ["Other?"], model="gemini-2.5-pro"),
    )


# -------------------------------------------------------------------------------- markers


@variant("breakpoint.missing", "$.system")
def no_marker_at_all() -> list[Line]:
    first, second = messages([block(RULES)], FIRST), messages([block(RULES)], MORE)
    return [read(sent(line, 100 + 20 * at), LONG, 0, 0) for at, line in enumerate((first, second))]


@variant("breakpoint.missing", "$.system")
def no_point_in_bedrock() -> list[Line]:
    first, second = converse([{"text": RULES}], FIRST), converse([{"text": RULES}], MORE)
    return [read(sent(line, 100 + 20 * at), LONG, 0, 0) for at, line in enumerate((first, second))]


@variant("breakpoint.missing", "$.prompt_cache_options.mode")
def explicit_mode_in_chat() -> list[Line]:
    options = {"prompt_cache_options": {"mode": "explicit"}}
    return two(
        chat(RULES, FIRST, model="gpt-5.6-sol", **options),
        chat(RULES, ["Other?"], model="gpt-5.6-sol", **options),
    )


@variant("breakpoint.placement", "$.messages[0].content")
def a_handbook_at_the_head_of_a_user_message() -> list[Line]:
    return two(
        chat(None, [f"{RULES} Question: how long?"], model="gpt-5.6-sol"),
        chat(None, [f"{RULES} Question: who pays?"], model="gpt-5.6-sol"),
    )


@variant("breakpoint.placement", "$.tools[1]")
def only_the_tools_are_marked() -> list[Line]:
    tools = [tool("a", text("t", 1100)), {**tool("b"), **EPHEMERAL}]
    return two(
        messages([block(RULES)], FIRST, tools=tools),
        messages([block(RULES)], MORE, tools=tools),
        total=4200,
        cached=1150,
    )


@variant("breakpoint.placement", "$.system[0].cache_control")
def a_growing_history_is_never_marked() -> list[Line]:
    said = [text("q", 900), text("r", 900), "So?"]
    system = [block(text("a", 1500), marked=True)]
    return [
        read(sent(messages(system, said), 100), 3300, 0, 1500),
        read(sent(messages(system, [*said, "Yes.", "And?"]), 120), 3320, 1500, 0),
    ]


@variant("breakpoint.on_volatile_block", "$.messages[0].content[1]")
def a_row_before_the_point_in_bedrock() -> list[Line]:
    def body(row: str) -> Line:
        return converse([], [[{"text": RULES}, {"text": row}, POINT]])

    return two(body("row 1: alpha"), body("row 2: beta"))


@variant("breakpoint.on_volatile_block", "$.messages[0].content")
def an_automatic_marker_on_the_question() -> list[Line]:
    automatic = {"cache_control": {"type": "ephemeral"}}
    return two(
        messages([block(RULES)], ["How long?"], **automatic),
        messages([block(RULES)], ["Who pays?"], **automatic),
    )


@variant("breakpoint.lookback_overflow", "$.messages[0].content[39]")
def forty_blocks_are_added_at_once() -> list[Line]:
    old = [block(text("brief", 2500), marked=True)]
    new = [
        block(text("brief", 2500)),
        *[block(f"note {index}: {text(str(index), 5)}") for index in range(39)],
    ]
    new[-1] = {**new[-1], **EPHEMERAL}
    return two(messages([], turns(old)), messages([], turns(new)))


@variant("breakpoint.lookback_overflow", "$.messages")
def many_turns_between_two_markers() -> list[Line]:
    said = [text("q", 1500), "Yes."]
    later = [f"Turn {index}: {text(str(index), 6)}" for index in range(26)]
    return two(
        messages([], turns([block(said[0], marked=True)])),
        messages([], turns(*said, *later, [block("So?", marked=True)])),
    )


@variant("breakpoint.implicit_boundary_moved", "$.messages[1].content")
def a_log_grows_inside_its_message() -> list[Line]:
    log = text("log", LONG)
    return two(
        chat("Short.", [log], model="gpt-5.6-terra"),
        chat("Short.", [f"{log}\nnext"], model="gpt-5.6-terra"),
    )


@variant("breakpoint.implicit_boundary_moved", "$.input[0].content[1]")
def a_part_is_added_to_a_message() -> list[Line]:
    def body(*parts: str) -> Line:
        content = [{"type": "input_text", "text": part} for part in parts]
        return responses("Short.", [{"role": "user", "content": content}], model="gpt-5.6-terra")

    return two(body(text("log", LONG)), body(text("log", LONG), "one more line"))


@variant("breakpoint.dropped_by_gateway", "$.system[0].cache_control", request=0)
def a_gateway_translates_and_loses_the_marker() -> list[Line]:
    line = messages(RULES, FIRST)
    passed_on = chat(RULES, FIRST, model="anthropic/claude-sonnet-4-5")["request"]
    return [{**read(sent(line, 100), LONG, 0, 0), "upstream_request": passed_on}]


@variant("breakpoint.dropped_by_gateway", "$.messages[0].content[0]")
def a_marker_that_neither_reads_nor_writes() -> list[Line]:
    def body(*said: object) -> Line:
        part = {"type": "text", "text": RULES, **EPHEMERAL}
        system = [{"role": "system", "content": [part]}, *turns(*said)]
        line = chat(None, system, model="anthropic/claude-sonnet-4.5")
        return {**line, "provider": "openrouter"}

    usage = {"prompt_tokens": LONG, "completion_tokens": 5, "cache_creation_input_tokens": 0}
    usage |= {"cache_read_input_tokens": 0}
    return [
        {**sent(body(*said), 100 + 20 * at), "response": {"usage": usage}}
        for at, said in enumerate((FIRST, MORE))
    ]


@variant("breakpoint.too_many", "$.messages[0].content[0].cache_control", request=0)
def five_markers_in_messages() -> list[Line]:
    results = [tool_result(f"toolu_{index}", "x", marked=True) for index in range(4)]
    line = messages(RULES, [{"role": "user", "content": results}])
    return [{**sent(line, 100), "status": 400}]


@variant("breakpoint.too_many", "$.cache_control", request=0)
def four_markers_and_an_automatic_one() -> list[Line]:
    system = [block(text("a", 900), marked=True), block(text("b", 900), marked=True)]
    said = [[block("q", marked=True)], "Yes.", [block("So?", marked=True)], "Ok.", "And?"]
    line = messages(system, turns(*said), cache_control={"type": "ephemeral"})
    return [{**sent(line, 100), "status": 400}]


@variant("breakpoint.ttl_order", "$.messages[0].content[0].cache_control.ttl", request=0)
def an_hour_behind_five_minutes_in_messages() -> list[Line]:
    line = messages(RULES, turns([block("Hello", ttl="1h")]))
    return [{**sent(line, 100), "status": 400}]


@variant("breakpoint.ttl_order", "$.system[1].cachePoint.ttl", request=0)
def an_hour_behind_five_minutes_in_bedrock() -> list[Line]:
    tools = {"tools": [{"toolSpec": {"name": "a", "inputSchema": {"json": {}}}}, POINT]}
    hour = {"cachePoint": {"type": "default", "ttl": "1h"}}
    line = converse([{"text": RULES}, hour], FIRST, toolConfig=tools)
    return [{**sent(line, 100), "status": 400}]


# ------------------------------------------------------------------------------- lifetimes


@variant("ttl.expired", "$.messages[0].content[0].cache_control")
def ten_minutes_between_two_turns() -> list[Line]:
    return two(messages(RULES, FIRST), messages(RULES, MORE), gap_s=601)


@variant("ttl.expired", "$.system[0].cache_control")
def seventy_minutes_after_an_hour_without_counts() -> list[Line]:
    system = [block(RULES, ttl="1h")]
    return guess(messages(system, FIRST), messages(system, MORE), gap_s=70 * 60)


@variant("ttl.expired", "$")
def two_hours_on_gpt_4_1() -> list[Line]:
    key = {"prompt_cache_key": "k"}
    return two(chat(RULES, FIRST, **key), chat(RULES, MORE, **key), gap_s=7200)


@variant("ttl.expired", "$")
def forty_minutes_on_gpt_5_6() -> list[Line]:
    model = "gpt-5.6-sol"
    return two(chat(RULES, FIRST, model=model), chat(RULES, MORE, model=model), gap_s=2400)


@variant("ttl.tier_changed", "$.system[0].cache_control.ttl")
def five_minutes_after_an_hour() -> list[Line]:
    return two(messages([block(RULES, ttl="1h")], FIRST), messages(RULES, MORE))


@variant("ttl.tier_changed", "$.prompt_cache_retention")
def a_day_after_minutes_in_openai() -> list[Line]:
    key = {"prompt_cache_key": "k"}
    return two(chat(RULES, FIRST, **key), chat(RULES, MORE, prompt_cache_retention="24h", **key))


# ------------------------------------------------------------------- overlap and placement


@variant("concurrency.cold_race")
def two_workers_of_gpt_4_1() -> list[Line]:
    lines = [chat(RULES, ["Part 0"]), chat(RULES, ["Part 1"])]
    return [
        {**read(sent(line, 100 + at / 10), LONG, 0), "first_byte_s": 101.5}
        for at, line in enumerate(lines)
    ]


@variant("concurrency.cold_race")
def two_workers_without_the_time_of_their_first_bytes() -> list[Line]:
    lines = [messages(RULES, ["Part 0"]), messages(RULES, ["Part 1"])]
    return [{**read(line, LONG, 0), "at_s": 100 + at / 10} for at, line in enumerate(lines)]


@variant("routing.key_missing", "$.prompt_cache_key", request=2)
def some_calls_hit_and_some_do_not() -> list[Line]:
    hits = (0, 2944, 0, 2944, 0)
    return [
        read(sent(chat(RULES, [f"Ping {at}"], model="gpt-4o"), 100 + 30 * at), LONG, hit)
        for at, hit in enumerate(hits)
    ]


@variant("routing.key_missing", "$.prompt_cache_key")
def a_key_is_left_out_the_second_time() -> list[Line]:
    return two(responses(RULES, FIRST, prompt_cache_key="c1"), responses(RULES, MORE))


@variant("routing.key_volatile", "$.prompt_cache_key")
def a_key_for_each_call_in_azure() -> list[Line]:
    lines = two(
        chat(RULES, FIRST, prompt_cache_key="3f0c9a52"),
        chat(RULES, MORE, prompt_cache_key="0b7e5d30"),
    )
    return [{**line, "provider": "azure"} for line in lines]


@variant("routing.key_volatile", "$.prompt_cache_key")
def a_key_with_the_turn_in_it_without_counts() -> list[Line]:
    return guess(
        responses(RULES, FIRST, model="gpt-5.6-sol", prompt_cache_key="chat-9-turn-1"),
        responses(RULES, MORE, model="gpt-5.6-sol", prompt_cache_key="chat-9-turn-2"),
    )


@variant("routing.key_shared_overflow", "$.prompt_cache_key", request=25)
def one_key_for_everybody() -> list[Line]:
    hits = [0] + [2944 if at % 5 else 0 for at in range(1, 26)]
    return [
        read(sent(chat(RULES, [f"Ping {at}"], prompt_cache_key="app"), 100 + 2 * at), LONG, hit)
        for at, hit in enumerate(hits)
    ]


@variant("routing.key_shared_overflow", "$.prompt_cache_key", request=20)
def one_key_for_a_fan_out_in_responses() -> list[Line]:
    return [
        read(
            sent(responses(RULES, [f"Ping {at}"], prompt_cache_key="app"), 100 + at),
            LONG,
            0 if at in (0, 20) else 2944,
        )
        for at in range(21)
    ]


@variant("routing.key_shared_overflow", "$.prompt_cache_key", request=5)
def one_key_and_a_few_calls_in_a_row() -> list[Line]:
    hits = (0, 2944, 2944, 0, 2944, 0)
    return [
        read(sent(chat(RULES, [f"Ping {at}"], prompt_cache_key="app"), 100 + 1.5 * at), LONG, hit)
        for at, hit in enumerate(hits)
    ]


@variant("routing.account_rotated", request=2)
def two_workspaces_in_turn() -> list[Line]:
    said = [text("q", 900), "Yes.", text("q2", 900), "Yes.", "So?"]
    lines = [
        messages(RULES, turns(*said[:index], [block(said[index], marked=True)]))
        for index in (0, 2, 4)
    ]
    counts = ((3900, 0), (4800, 0), (4900, 3900))
    return [
        {**read(sent(line, 100 + 20 * at), *counts[at]), "account": f"workspace-{at % 2}"}
        for at, line in enumerate(lines)
    ]


@variant("routing.account_rotated")
def another_organisation_in_gemini() -> list[Line]:
    first, second = two(gemini(RULES, FIRST), gemini(RULES, MORE))
    return [{**first, "account": "project-a"}, {**second, "account": "project-b"}]


@variant("routing.upstream_switched")
def an_aggregator_says_who_answered() -> list[Line]:
    first, second = two(
        chat(RULES, FIRST, model="qwen/qwen4"), chat(RULES, MORE, model="qwen/qwen4")
    )
    first["response"]["provider"], second["response"]["provider"] = "HostA", "HostB"
    return [{**line, "provider": "openrouter"} for line in (first, second)]


@variant("routing.upstream_switched")
def another_replica_of_ones_own() -> list[Line]:
    first, second = two(chat(RULES, FIRST, model="m"), chat(RULES, MORE, model="m"))
    return [
        {**line, "provider": "self_hosted", "host": f"10.0.0.{at}"}
        for at, line in enumerate((first, second))
    ]


# -------------------------------------------------------------------------- by design, odd


@variant("expected.common_prefix_detection", "$.messages[1].content")
def a_second_question_to_deepseek() -> list[Line]:
    lines = two(
        chat(RULES, ["What is the first rule?"], model="deepseek-v4"),
        chat(RULES, ["Who wrote them?"], model="deepseek-v4"),
    )
    return [{**line, "provider": "deepseek"} for line in lines]


@variant("expected.first_request", "$", request=1)
def two_conversations_that_share_nothing() -> list[Line]:
    return two(messages(RULES, FIRST), messages(text("other", LONG), ["Elsewhere"]))


@variant("expected.first_request", "$", request=0)
def one_request_and_no_more() -> list[Line]:
    return [read(sent(messages(RULES, FIRST), 100), LONG, 0)]


@variant("accounting.normalisation", "$.usage.prompt_tokens", request=0)
def a_gateway_leaves_the_reads_out_of_the_total() -> list[Line]:
    usage = {"prompt_tokens": 4, "completion_tokens": 9, "cache_read_input_tokens": 3000}
    usage["prompt_tokens_details"] = {"cached_tokens": 3000}  # type: ignore[assignment]
    return [{**sent(messages(RULES, FIRST), 100), "response": {"usage": usage}}]


@variant("accounting.normalisation", "$.usage.input_tokens_details.cached_tokens", request=0)
def a_gateway_forgets_the_reads_in_responses() -> list[Line]:
    usage = {"input_tokens": 3004, "output_tokens": 9, "cache_read_input_tokens": 3000}
    usage["input_tokens_details"] = {"cached_tokens": 0}  # type: ignore[assignment]
    return [{**sent(responses(RULES, FIRST), 100), "response": {"usage": usage}}]


@variant("accounting.normalisation", "$.usage.prompt_tokens_details.cached_tokens", request=0)
def a_gateway_forgets_deepseeks_hits() -> list[Line]:
    usage = {"prompt_tokens": 3004, "completion_tokens": 9, "prompt_cache_hit_tokens": 2944}
    usage["prompt_tokens_details"] = {"cached_tokens": 0}  # type: ignore[assignment]
    line = {**chat(RULES, FIRST, model="deepseek-v4"), "provider": "deepseek"}
    return [{**sent(line, 100), "response": {"usage": usage}}]


@variant("accounting.normalisation", "$.usage.prompt_tokens", request=0)
def a_stream_that_was_not_counted() -> list[Line]:
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    return [{**sent(chat(RULES, FIRST, stream=True), 100), "response": {"usage": usage}}]


@variant("accounting.normalisation", "$.usage.prompt_tokens", request=0)
def a_gateway_counts_the_reads_twice() -> list[Line]:
    usage = {"prompt_tokens": 6004, "completion_tokens": 9, "input_tokens": 4}
    usage |= {"cache_read_input_tokens": 3000, "cache_creation_input_tokens": 0}
    return [{**sent(messages(RULES, FIRST), 100), "response": {"usage": usage}}]


@variant("experiment.contaminated", "$.input[0].content", request=2)
def a_probe_without_a_nonce() -> list[Line]:
    def body(model: str, said: str) -> Line:
        first = {"role": "developer", "content": RULES}
        return responses("", [first, {"role": "user", "content": said}], model=model)

    return [
        read(sent(body("gpt-5-mini", "before"), 0), LONG, 0),
        read(sent(body("gpt-4o-mini", "q"), 200), LONG, 0),
        read(sent(body("gpt-5-mini", "q"), 210), LONG, 2944),
    ]


@variant("provider.unexplained")
def the_same_again_with_a_key() -> list[Line]:
    line = chat(RULES, FIRST, prompt_cache_key="k")
    return two(line, line)


@variant("provider.unexplained")
def the_same_again_in_bedrock() -> list[Line]:
    line = converse([{"text": RULES}, POINT], FIRST)
    return two(line, line)


# ----------------------------------------------------------------------------- no miss


@variant(None)
def a_conversation_that_grows_in_messages() -> list[Line]:
    said = [text("q", 900), "Yes.", text("q2", 900), "Yes.", "So?"]
    lines = [
        messages(RULES, turns(*said[:index], [block(said[index], marked=True)]))
        for index in (0, 2, 4)
    ]
    counts = ((3900, 0), (4800, 3900), (4810, 4800))
    return [read(sent(line, 100 + 20 * at), *counts[at]) for at, line in enumerate(lines)]


@variant(None)
def a_conversation_that_grows_without_counts() -> list[Line]:
    said = [text("q", 900), "Yes.", text("q2", 900), "Yes.", "So?"]
    return [sent(responses(RULES, said[: index + 1]), 100 + index) for index in (0, 2, 4)]


@variant(None)
def other_samples_and_limits() -> list[Line]:
    return two(
        chat(RULES, FIRST, temperature=0.2, max_tokens=10, user="ann", seed=1),
        chat(RULES, MORE, temperature=0.9, max_tokens=99, user="bob", stream=True),
        cached=2944,
    )


@variant(None)
def a_string_becomes_a_block_and_a_marker_moves() -> list[Line]:
    return two(
        messages(RULES, turns([block("Hello there", marked=True)])),
        messages(RULES, turns("Hello there", "Hi.", [block("So?", marked=True)])),
        cached=2990,
    )


@variant(None)
def questions_to_one_handbook() -> list[Line]:
    return two(chat(RULES, ["How long?"]), chat(RULES, ["Who pays for it?"]), cached=2944)


@variant(None)
def a_picture_in_the_newest_turn() -> list[Line]:
    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBO" * 200}}
    return two(chat(RULES, FIRST), chat(RULES, [*MORE[:2], [shown]]), cached=2944)


@variant(None)
def an_answer_edited_on_a_provider_that_keeps_no_answers() -> list[Line]:
    first, second = two(
        chat(RULES, FIRST), chat(RULES, ["What first?", "This", "And?"]), cached=2944
    )
    first["response"]["choices"] = [{"message": {"role": "assistant", "content": "This\n"}}]
    return [first, second]


@variant(None)
def a_question_is_asked_again() -> list[Line]:
    line = chat(RULES, FIRST)
    return two(line, line, cached=2944)
