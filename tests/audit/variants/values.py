"""Values that change with each request: clocks, ids, contexts that are fetched anew."""

from tests.audit.talk import (
    POINT,
    Line,
    chat,
    converse,
    gemini,
    messages,
    responses,
    text,
    tool,
    turns,
)
from tests.audit.variants.record import FIRST, MORE, RULES, two, variant

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
