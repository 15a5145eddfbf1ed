"""Guesses come from where the same tokens stood before."""

import random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kvikk.engine.lookup import PromptLookup

STORY = random.Random(0).choices(range(49_152), k=400)


def guessed(lookup: PromptLookup, tokens: list[int], max_tokens: int = 7) -> list[int]:
    return [guess.token_id for guess in lookup.draft(tokens, 0.05, max_tokens)]


@pytest.mark.parametrize("place", [2, 17, 150, 390])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_quotation_is_continued_as_it_was(place: int, at_once: bool) -> None:
    lookup = PromptLookup(1000)
    tokens = STORY + STORY[place - 2 : place]
    if not at_once:
        for stop in range(1, len(tokens)):
            lookup.draft(tokens[:stop], 0.05, 7)
    guess = guessed(lookup, tokens)
    assert guess
    assert guess == (STORY * 2)[place : place + len(guess)]
    tokens += STORY[place : place + 3]
    following = guessed(lookup, tokens)
    assert len(following) > len(guess), "the longer a match, the surer"
    assert following == (STORY + tokens[400:] * 2)[place + 3 : place + 3 + len(following)]


@given(tokens=st.lists(st.integers(0, 3), max_size=120), pieces=st.lists(st.integers(1, 90)))
def test_before_every_guess_stand_the_tokens_that_came_last(
    tokens: list[int], pieces: list[int]
) -> None:
    lookup = PromptLookup(120)
    stop = 0
    for piece in [*pieces, 120]:
        stop = min(stop + piece, len(tokens))
        known = tokens[:stop]
        guesses = lookup.draft(known, 0.05, 7)
        chances = [guess.chance for guess in guesses]
        assert chances == sorted(chances, reverse=True)
        if guesses:
            # Some earlier place has the last two tokens before it and all guesses behind it, where
            # a text that turns in a circle goes on with its own guesses.
            whole = known + [guess.token_id for guess in guesses]
            assert any(
                whole[place - 2 : place] == known[-2:]
                and whole[place : place + len(guesses)] == whole[stop:]
                for place in range(2, stop)
            )


def test_nothing_is_guessed_where_nothing_repeats() -> None:
    lookup = PromptLookup(400)
    assert all(not lookup.draft(list(range(stop)), 0.05, 7) for stop in range(1, 400))


def test_of_two_places_the_one_with_more_in_common_is_followed_and_then_the_latest() -> None:
    lookup = PromptLookup(100)
    tokens = [1, 2, 3, 4, 50, 9, 3, 4, 60, 8, 7, 3, 4, 70, 1, 2, 3, 4]
    assert guessed(lookup, tokens, 1) == [50]
    other = PromptLookup(100)
    assert guessed(other, [3, 4, 50, 9, 3, 4, 60, 8, 3, 4], 1) == [60]


def test_a_text_that_turns_in_a_circle_is_guessed_beyond_its_end() -> None:
    lookup = PromptLookup(100)
    tokens = [5, 6, 7]
    for _ in range(30):
        lookup.draft(tokens, 0.05, 7)
        tokens.append(tokens[-3])
    expected = [tokens[-3 + i % 3] for i in range(7)]
    assert guessed(lookup, tokens) == expected


def test_a_sequence_whose_matches_are_wrong_is_guessed_less_and_one_that_repeats_more() -> None:
    source = random.Random(1)
    lookup = PromptLookup(4000)
    tokens: list[int] = []
    for number in range(300):  # the same two tokens, and never the same after them
        tokens += [1, 2, 100 + number, source.randrange(500, 40_000)]
        lookup.draft(tokens, 0.05, 7)
    tokens += [1, 2]
    assert len(lookup.draft(tokens, 0.05, 7)) <= 1
    for _ in range(6):
        for token in STORY:
            tokens.append(token)
            lookup.draft(tokens, 0.05, 7)
    assert len(lookup.draft(tokens, 0.05, 7)) == 7


def test_memory_is_bounded_and_the_latest_text_is_known() -> None:
    lookup = PromptLookup(10**9)
    source = random.Random(2)
    long = [source.randrange(49_152) for _ in range(300_000)]
    lookup.draft(long, 0.05, 7)
    tokens = long + long[-1000:-996]
    assert guessed(lookup, tokens) == long[-996 : -996 + len(guessed(lookup, tokens))] != []
    assert len(lookup._table) == 65_536
