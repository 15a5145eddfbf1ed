"""A conversation that is not the one before with something added."""

from tests.audit.talk import (
    EPHEMERAL,
    Line,
    block,
    call,
    chat,
    messages,
    responses,
    text,
    tool_result,
    tool_use,
    turns,
)
from tests.audit.variants.record import two, variant

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
