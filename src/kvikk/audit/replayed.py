"""An answer beside what was sent back of it: for servers that keep what they generated.

No two requests differ then; the answer and the next request do.
"""

from collections.abc import Sequence
from typing import Any

from kvikk.audit.difference import common_prefix
from kvikk.audit.forms import changed_form
from kvikk.audit.missed import Cause
from kvikk.audit.prompt import Prompt, Slot, pieces
from kvikk.wire.segments_any import Api, segments
from kvikk.wire.segments_json import elements, mapping

# Who keeps an answer's keys and values beside the prompt's.
KEEPS_ANSWERS = ("self_hosted", "deepseek", "other")


def answer_slots(api: Api, response: dict[str, Any] | None) -> tuple[Slot, ...]:
    """The pieces of a response as they stand in a request that sends it back unchanged."""
    if response is None:
        return ()
    match api:
        case "chat_completions":
            choice = next((one for one, _ in elements(response.get("choices"), "")), None)
            said = mapping(mapping(choice).get("message"))
            body: dict[str, Any] = {"messages": [{"role": "assistant", **said}]} if said else {}
        case "responses":
            body = {"input": response.get("output")}
        case "messages":
            body = {"messages": [{"role": "assistant", "content": response.get("content")}]}
        case "generate_content":
            candidate = next((one for one, _ in elements(response.get("candidates"), "")), None)
            body = {"contents": [mapping(candidate).get("content")]}
        case "converse":
            message = mapping(mapping(response.get("output")).get("message"))
            body = {"messages": [message]} if message else {}
    return pieces(segments(api, body)).slots


def changed_answer(answer: Sequence[Slot], prompt: Prompt, index: int) -> Cause | None:
    """How the turn at piece ``index`` differs from the ``answer`` that it should be."""
    turn = []
    for slot in prompt.slots[index:]:
        if slot.role != "assistant":
            break
        turn.append(slot)
    if not turn:
        return None
    stop = prompt.tokens_at(prompt.ends[index + len(turn) - 1])
    for place, was in enumerate(answer):
        if place >= len(turn):
            return None
        now = turn[place]
        if was.piece.digest == now.piece.digest:
            continue
        if was.kind == "thinking" != now.kind:
            start = prompt.tokens_at(prompt.start(index + place))
            return Cause("history.thinking_dropped", now.path, start, stop, was.piece.text)
        shown = was.piece.text, now.piece.text
        start = prompt.tokens_at(prompt.at(index + place, common_prefix(*shown)))
        start = min(start, stop - 1)  # what is missing at the end changes the token in front of it
        form = changed_form(was, now)
        if form is not None:
            return Cause(form.cause, form.path, start, stop, *shown)
        if (was.kind, was.role) == (now.kind, now.role) == ("text", "assistant"):
            return Cause("history.replay_differs", now.path, start, stop, *shown)
        return None
    return None
