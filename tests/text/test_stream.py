from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvikk.text.stream import StopMatcher, StreamDecoder


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_a_stream_joined_is_what_decoding_all_tokens_gives(model, request):
    tokenizer = request.getfixturevalue(f"{model}_tokenizer")
    # Byte tokens of Gemma's are drawn often: they are where characters come in parts.
    token_ids = st.integers(0, tokenizer.vocabulary_size - 1) | st.integers(238, 493)

    @settings(max_examples=300)
    @given(st.lists(st.lists(token_ids, max_size=4), max_size=30), st.booleans())
    def check(pushes, special):
        decoder = StreamDecoder(tokenizer, special=special)
        streamed = "".join(decoder.push(push) for push in pushes) + decoder.finish()
        assert streamed == tokenizer.decode(chain(*pushes), special=special)

    check()


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_half_a_character_is_never_emitted(model, request):
    tokenizer = request.getfixturevalue(f"{model}_tokenizer")
    text = "\U0001d573👩‍👩‍👧‍👦 é漢字 ﷽ \U0001fae8"
    decoder = StreamDecoder(tokenizer)
    token_ids = tokenizer.encode(text, add_bos=False)
    pieces = [decoder.push([token_id]) for token_id in token_ids]
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces)
    assert "" in pieces  # some token was only a part of a character


def test_a_character_that_never_becomes_whole_is_shown_as_replaced(gemma3_tokenizer):
    decoder = StreamDecoder(gemma3_tokenizer)
    first_bytes_of_an_emoji = [
        gemma3_tokenizer.vocabulary.pieces.index(f"<0x{b:02X}>") for b in (0xF0, 0x9F)
    ]
    assert decoder.push(first_bytes_of_an_emoji) == ""
    assert decoder.finish() == "\ufffd"


def _cut_letter_by_letter(text, stops):
    """The definition: read on until some stop string has been read; of several, the longest."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            return text[: end - len(max(ended, key=len))], True
    return text, False


@settings(max_examples=500)
@given(
    st.lists(st.text("abc", max_size=4), max_size=12),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=4),
)
def test_text_is_cut_where_the_first_stop_string_is_complete(pieces, stops):
    expected, expected_stop = _cut_letter_by_letter("".join(pieces), stops)
    matcher = StopMatcher(stops)
    emitted, stopped = "", False
    for piece in pieces:
        matched = matcher.push(piece)
        emitted += matched.text
        # Nothing goes out that a stop string could still take back.
        assert expected.startswith(emitted)
        if matched.stopped:
            stopped = True
            break
    else:
        emitted += matcher.finish()
    assert (emitted, stopped) == (expected, expected_stop)


def test_only_the_beginning_of_a_stop_string_is_held_back():
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.push("Hello").text == "Hello"
    assert matcher.push(" there\n").text == " there"
    assert matcher.push("\nUse").text == ""
    assert matcher.push("ful").text == "\n\nUseful"
    assert matcher.finish() == ""
