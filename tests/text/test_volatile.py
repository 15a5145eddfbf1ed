"""The kind of a value that differs, on values as prompts have them."""

import uuid

import pytest

from kvikk.text.volatile import ValueKind, difference, kind_of


@pytest.mark.parametrize(
    ("kind", "value", "other"),
    [
        ("time", "14:31:58", "14:32:07"),
        ("time", "9:59:58", "10:00:07"),
        ("time", "2026-11-30T09:15:02Z", "2026-11-30T09:15:40.250Z"),
        ("time", "9:15 PM", "9:16 PM"),
        ("time", "1764460800", "1764460862"),
        ("time", "1764460800123", "1764460862456"),
        ("time", "3 pm", "11 AM"),
        ("time", "morning", "late evening"),
        ("date", "2026-11-29", "2026-11-30"),
        ("date", "29/11/2026", "30/11/2026"),
        ("date", "November 29, 2026", "December 1, 2026"),
        ("date", "30 Nov 2026", "1 Dec 2026"),
        ("date", "Sunday", "Monday"),
        ("UUID", str(uuid.UUID(int=5)), str(uuid.UUID(int=2**100))),
        ("counter", "12", "13"),
        ("counter", "#41", "#1,042"),
        ("path", "/home/ann/project-a", "/home/bob/b"),
        ("path", "C:\\Users\\Ann", "C:\\Users\\Bob"),
        ("random identifier", "req_8f3kd92ms", "req_1x77fj2ka"),
        ("random identifier", "a3f5c2e19b", "77e0d1c4aa"),
        ("random identifier", "a41f0", "7de93"),
        ("user name", "ann@example.org", "bob@example.org"),
        ("value", "concise", "thorough"),
        ("value", "handbook", "Handbuch"),
    ],
)
def test_a_value_is_of_the_kind_that_both_look_like(kind: str, value: str, other: str) -> None:
    assert kind_of(value, other) == kind
    assert kind_of(other, value) == kind


@pytest.mark.parametrize(
    "before", ["Hello ", "The user's name is ", "User: ", "You assist, name: "]
)
def test_a_word_behind_a_greeting_or_a_label_is_a_user_name(before: str) -> None:
    assert kind_of("Ann Lee", "Bob", before) is ValueKind.USER_NAME
    assert kind_of("Ann Lee", "Bob", "The capital of ") is ValueKind.OTHER


@pytest.mark.parametrize(
    ("before", "value", "other", "after"),
    [
        ("bought a bike (", "41", "44", " minutes ago)"),
        ("- dentist, ", "2 hours", "3 hours", " ago\n"),
        ("- dentist, ", "yesterday", "2 days ago", "\n"),
        ("the file is ", "5", "6", " days old."),
        ("System uptime: ", "3h 12m", "3h 14m", "\n"),
        ("due ", "in 5 minutes", "in 2 minutes", ". "),
    ],
)
def test_how_long_ago_something_was_is_no_counter(
    before: str, value: str, other: str, after: str
) -> None:
    assert difference(before, value, other, after).kind is ValueKind.AGE


def test_a_number_of_something_else_is_no_age() -> None:
    assert difference("There are ", "41", "44", " minutes in it").kind is ValueKind.COUNTER
    assert difference("Step ", "3", "4", " of 9").kind is ValueKind.COUNTER


def test_values_cut_by_tokens_grow_to_whole_words() -> None:
    result = difference("It is 14:3", "2:0", "1:5", "7 now. You are")
    assert (result.value, result.other, result.kind) == ("14:32:07", "14:31:57", ValueKind.TIME)


def test_quotes_and_brackets_are_no_part_of_a_value() -> None:
    result = difference('{"id": "', "req_8f3kd92ms", "req_1x77fj2ka", '", "tools"')
    assert (result.value, result.kind) == ("req_8f3kd92ms", ValueKind.IDENTIFIER)


def test_a_date_and_a_time_together_are_a_time() -> None:
    result = difference("Now: ", "2026-11-30 09:15:02", "2026-11-29 23:59:59", "\n")
    assert result.kind is ValueKind.TIME
