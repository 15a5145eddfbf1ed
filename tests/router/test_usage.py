"""Usage is read from an answer however its bytes are cut."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from kvikk.router.proxy.placement import Reported
from kvikk.router.proxy.usage import UsageReader

OPENAI = {
    "prompt_tokens": 70,
    "completion_tokens": 3,
    "total_tokens": 73,
    "prompt_tokens_details": {"cached_tokens": 64},
}


def event(value: object, end: str = "\n\n") -> str:
    return f"data: {json.dumps(value)}{end}"


STREAMS = {
    "usage and [DONE] in events of their own": (
        event({"choices": [{"delta": {"content": 'says "usage": {"prompt_tokens": 1}'}}]})
        + event({"choices": [{}], "usage": None})
        + event({"choices": [], "usage": OPENAI})
        + "data: [DONE]\n\n",
        Reported(70, 64, 3),
    ),
    "usage in every event": (
        "".join(
            event({"choices": [{}], "usage": {**OPENAI, "completion_tokens": count}}, "\r\n\r\n")
            for count in range(4)
        ),
        Reported(70, 64, 3),
    ),
    "Anthropic's, in two parts": (
        "event: message_start\n"
        + event(
            {
                "type": "message_start",
                "message": {
                    "usage": {
                        "input_tokens": 6,
                        "cache_read_input_tokens": 64,
                        "cache_creation_input_tokens": 10,
                        "output_tokens": 1,
                    }
                },
            }
        )
        + "event: message_delta\n"
        + event({"type": "message_delta", "usage": {"output_tokens": 9}}),
        Reported(80, 64, 9),
    ),
    "Responses'": (
        "event: response.completed\n"
        + event(
            {
                "type": "response.completed",
                "response": {
                    "usage": {
                        "input_tokens": 70,
                        "input_tokens_details": {"cached_tokens": 32},
                        "output_tokens": 5,
                    }
                },
            }
        ),
        Reported(70, 32, 5),
    ),
    "none": (event({"choices": []}) + "data: [DONE]\n\n", None),
    "no cached tokens": (
        event({"usage": {"prompt_tokens": 7, "completion_tokens": 1}}),
        Reported(7, None, 1),
    ),
    "a stream that ends without a line's end": (event({"usage": OPENAI}, ""), Reported(70, 64, 3)),
}


@given(name=st.sampled_from(sorted(STREAMS)), data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_stream_says_the_same_however_it_is_cut(name: str, data):
    """Where usage and [DONE] come apart, others record 0 (GAIE 2026)."""
    text, expected = STREAMS[name]
    body = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(body)), max_size=12)))
    reader = UsageReader(is_stream=True)
    for start, stop in zip([0, *cuts], [*cuts, len(body)], strict=True):
        reader.feed(body[start:stop])
    reader.close()
    assert reader.reported == expected


def test_a_whole_answer_says_it_and_text_cannot_pretend_to():
    body = json.dumps(
        {"choices": [{"message": {"content": '"usage": {"prompt_tokens": 1}'}}], "usage": OPENAI}
    ).encode()
    reader = UsageReader(is_stream=False)
    reader.feed(body[:30])
    reader.feed(body[30:])
    reader.close()
    assert reader.reported == Reported(70, 64, 3)


def test_what_is_no_json_or_too_large_is_passed_over():
    for is_stream in (True, False):
        reader = UsageReader(is_stream)
        reader.feed(b'data: {"usage": {"prompt_tokens": 1\n\n')
        reader.feed(b"x" * (3 << 20))
        reader.feed(b'\n\ndata: [3, {"usage": {}}]\n\n')
        reader.close()
        assert reader.reported is None
