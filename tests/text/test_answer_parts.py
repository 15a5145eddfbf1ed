"""Answers as models write them, taken apart however they are cut."""

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kvikk.text.answer_parts import AnswerSplitter, AnswerStyle
from kvikk.wire.deltas import AnswerDelta, ToolCallDelta, WholeAnswer, join

OSLO, BERGEN = '{"place": "Oslo"}', '{"place": "Bergen", "unit": "}\\"{"}'
EMPTY = '{"name": "b", "arguments": {}}'
TWO_CALLS = (
    f'<tool_call>{{"name": "a", "arguments": {OSLO}}}</tool_call>\n'
    f'<tool_call>{{"name":"b","arguments":{BERGEN}}}</tool_call>\n'
)
HERMES, MISTRAL, LLAMA = AnswerStyle("hermes"), AnswerStyle("mistral"), AnswerStyle("llama")
THINKS = AnswerStyle("hermes", reasons=True)

# An answer, its style, and what it comes to: text, reasoning, calls.
ANSWERS = [
    ("Hello <b>.", HERMES, ("Hello <b>.", None, [])),
    ("  Hello ", HERMES, ("Hello ", None, [])),
    (
        f'<tool_call>\n{{"name": "weather", "arguments": {OSLO}}}\n</tool_call>',
        HERMES,
        (None, None, [("weather", OSLO)]),
    ),
    (
        f"I look.\n{TWO_CALLS}",
        HERMES,
        ("I look.\n", None, [("a", OSLO), ("b", BERGEN)]),
    ),
    (
        f'<tool_call>[{{"name": "a", "arguments": {OSLO}}}, {EMPTY}]</tool_call> Done.',
        HERMES,
        ("Done.", None, [("a", OSLO), ("b", "{}")]),
    ),
    (
        f'<tool_call>{{"arguments": {OSLO}, "name": "late"}}</tool_call>',
        HERMES,
        (None, None, [("late", OSLO)]),
    ),
    (
        '<tool_call>{"name": "text", "arguments": "{\\"x\\": 1}"}</tool_call>',
        HERMES,
        (None, None, [("text", '{"x": 1}')]),
    ),
    ("<tool_call>no call</tool_call>", HERMES, ("<tool_call>no call</tool_call>", None, [])),
    ('<tool_call>{"no": 1}</tool_call>', HERMES, ('<tool_call>{"no": 1}</tool_call>', None, [])),
    ("a <tool_cal", HERMES, ("a <tool_cal", None, [])),
    (
        f'[TOOL_CALLS][{{"name": "a", "arguments": {OSLO}}}, {{"name": "b", "arguments": {{}}}}]',
        MISTRAL,
        (None, None, [("a", OSLO), ("b", "{}")]),
    ),
    (
        f"Well. [TOOL_CALLS]weather[ARGS]{OSLO}[TOOL_CALLS]x{{}}",
        MISTRAL,
        ("Well. ", None, [("weather", OSLO), ("x", "{}")]),
    ),
    (f'{{"name": "a", "parameters": {OSLO}}}', LLAMA, (None, None, [("a", OSLO)])),
    (f'<|python_tag|>{{"name": "a", "parameters": {OSLO}}}', LLAMA, (None, None, [("a", OSLO)])),
    ('{"answer": 4}', LLAMA, ('{"answer": 4}', None, [])),
    ("No {calls}", LLAMA, ("No {calls}", None, [])),
    ("<think>\nHm, so.\n</think>\n\nFour.", THINKS, ("Four.", "Hm, so.", [])),
    (
        f'<think>a\n\nb</think>\n<tool_call>{{"name": "a", "arguments": {OSLO}}}</tool_call>',
        THINKS,
        (None, "a\n\nb", [("a", OSLO)]),
    ),
    ("<think></think>Yes", THINKS, ("Yes", None, [])),
    ("No <think> here.", THINKS, ("No <think> here.", None, [])),
    ("Hm.</think>Four.", AnswerStyle(None, True, True), ("Four.", "Hm.", [])),
    ("Hm. And", AnswerStyle(None, True, True), ("", "Hm. And", [])),
]


def take_apart(pieces: list[str], style: AnswerStyle) -> tuple[WholeAnswer, list[AnswerDelta]]:
    ids = iter(f"call-{number}" for number in range(9))
    splitter = AnswerSplitter(style, lambda: next(ids))
    deltas = [delta for piece in pieces for delta in splitter.push(piece)] + splitter.finish()
    return join(deltas), deltas


def told(whole: WholeAnswer) -> tuple[str | None, str | None, list[tuple[str, str]]]:
    return whole.text, whole.reasoning, [(call.name, call.arguments) for call in whole.tool_calls]


@pytest.mark.parametrize(("answer", "style", "expected"), ANSWERS)
def test_each_familys_answers_are_understood_whole_and_by_the_character(
    answer: str, style: AnswerStyle, expected: object
) -> None:
    for pieces in ([answer], list(answer)):
        whole, _ = take_apart(pieces, style)
        assert told(whole) == expected
        assert [call.id for call in whole.tool_calls] == [
            f"call-{number}" for number in range(len(whole.tool_calls))
        ]


@given(st.sampled_from(ANSWERS), st.lists(st.integers(1, 12), max_size=40))
def test_how_an_answer_is_cut_changes_nothing(
    case: tuple[str, AnswerStyle, object], widths: list[int]
) -> None:
    answer, style, expected = case
    pieces = []
    for width in widths:
        pieces.append(answer[:width])
        answer = answer[width:]
    whole, _ = take_apart([*pieces, answer], style)
    assert told(whole) == expected


def test_arguments_are_passed_on_as_they_come() -> None:
    answer = f'<tool_call>{{"name": "weather", "arguments": {BERGEN}}}</tool_call>'
    _, deltas = take_apart(list(answer), HERMES)
    calls = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
    assert len(calls) == len(BERGEN)
    assert (calls[0].id, calls[0].name) == ("call-0", "weather")
    assert {(delta.id, delta.name) for delta in calls[1:]} == {(None, None)}
    assert json.loads("".join(delta.arguments for delta in calls)) == json.loads(BERGEN)


def test_text_is_passed_on_at_once() -> None:
    splitter = AnswerSplitter(HERMES)
    assert [delta.text for delta in splitter.push("It rains")] == ["It rains"]
    assert [delta.text for delta in splitter.push(" and <tool")] == [" and "]
    assert [delta.text for delta in splitter.push("s> pour")] == ["<tools> pour"]


def test_without_parallel_calls_the_first_is_the_only_one() -> None:
    answer = (
        '<tool_call>{"name": "a", "arguments": {}}</tool_call>'
        '<tool_call>{"name": "b", "arguments": {}}</tool_call>'
    )
    whole, _ = take_apart([answer], AnswerStyle("hermes", parallel=False))
    assert told(whole) == (None, None, [("a", "{}")])


def test_an_answer_cut_short_keeps_what_was_passed_on() -> None:
    whole, _ = take_apart(['<tool_call>{"name": "a", "arguments": {"x": [1, '], HERMES)
    assert told(whole) == (None, None, [("a", '{"x": [1, ')])
