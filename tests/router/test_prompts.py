"""What the placement reads of a request: its keys, its session, its beginning."""

import json

import pytest

from kvikk.router.placement.content import read_content
from kvikk.router.placement.prompts import TextSide, read_prompt, told_root
from kvikk.router.proxy.placement import Asked
from kvikk.wire.segments_chat import chat_segments
from tests.router.placing import LONG, Fleet, asked, chat


def test_keys_come_from_parsed_content_and_not_from_the_body_as_text(text_side: TextSide) -> None:
    one, other = chat(LONG, 'he said "user": "somebody"'), chat(LONG, "another question")
    path, body = "/v1/chat/completions", json.dumps(one, indent=8).encode()
    spaced = Asked("", path, "m", "tenant", b"", body, json.loads(body), {})
    once, again = (read_prompt(one, None) for one in (asked(one), spaced))
    assert (once.keys.data, once.session) == (again.keys.data, again.session)
    first, second = (read_prompt(asked(body), None) for body in (one, other))
    assert first.session_name == second.session_name == ""
    assert first.session != second.session
    assert first.keys.first(5).data == second.keys.first(5).data


def test_prompts_of_token_ids_are_keyed_by_their_tokens_and_not_by_their_length() -> None:
    path = "/v1/completions"
    one, other = ({"prompt": [start + n for n in range(64)]} for start in (0, 1))
    first, second = (read_prompt(asked(body, path=path), None) for body in (one, other))
    assert first.size == second.size == 64
    assert first.keys.count == 2
    assert not set(first.keys.split()) & set(second.keys.split())


def test_a_session_is_the_caller_s_word_for_it_or_its_beginning() -> None:
    named = [
        read_prompt(asked(chat("a", "b", prompt_cache_key="k")), None),
        read_prompt(asked(chat("c", "d", prompt_cache_key="k")), None),
        read_prompt(asked(chat("c", "d"), x_session_id="k"), None),
    ]
    assert len({prompt.session for prompt in named}) == 1
    assert {prompt.session_name for prompt in named} == {"k"}
    user = read_prompt(asked(chat("a", "b", metadata={"user_id": "k"})), None)
    assert user.session == named[0].session
    # Only what was made for that keeps requests together; a user may ask for this and that.
    assert [prompt.key for prompt in (*named, user)] == [*[named[0].session] * 3, b""]
    grown = [
        read_prompt(asked(chat("a", "b")), None),
        read_prompt(asked(chat("a", "b", "c", "d")), None),
        read_prompt(asked(chat("a", "x")), None),
    ]
    assert grown[0].session == grown[1].session != grown[2].session
    salted = read_prompt(asked(chat("a", "b", prompt_cache_key="k"), salt=b"s"), None)
    assert salted.session != named[0].session


@pytest.mark.parametrize(
    "body",
    [None, 7, {}, {"messages": 3}, {"messages": [3]}, {"prompt": [1.5]}, {"prompt": []}, {"x": 1}],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages"])
def test_bodies_that_make_no_sense_are_routed_all_the_same(
    body: object, path: str, text_side: TextSide
) -> None:
    fleet = Fleet(text_side=text_side)
    request = fleet.placement.read(asked(body, path=path))
    assert request.prompt_tokens >= 1
    assert fleet.placement.decide(request, fleet.views, ()).replica in fleet.views


def test_with_a_tokeniser_prompts_are_the_very_tokens_of_the_server(text_side: TextSide) -> None:
    body = chat("Be short.", "What is a cache?")
    prompt = read_prompt(asked(body), text_side, (16,))
    rendered = text_side.template.render(body["messages"])
    tokens = text_side.tokenizer.encode(rendered, add_bos=False)
    assert prompt.size == len(tokens)
    assert prompt.told[0].block_tokens == 16
    assert len(prompt.told[0].keys) == len(tokens) // 16


def test_what_is_more_than_text_is_compared_by_content(text_side: TextSide) -> None:
    parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    body = {"model": "m", "messages": [{"role": "user", "content": parts}]}
    prompt = read_prompt(asked(body), text_side, (16,))
    assert prompt.block_tokens == 0
    assert prompt.told == ()


def test_told_roots_differ_by_size_adapter_and_salt() -> None:
    roots = {
        told_root(*values) for values in ((16, "", ""), (32, "", ""), (16, "a", ""), (16, "", "a"))
    }
    assert len(roots) == 4


def test_a_message_has_the_same_keys_as_a_text_and_as_parts_and_beside_any_others() -> None:
    text = "In the north the winters are long. " * 40
    parts = [{"type": "text", "text": text}]
    tail = [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]
    plain, listed, longer = (
        read_prompt(asked({"model": "m", "messages": messages}), None)
        for messages in (
            [{"role": "user", "content": text}],
            [{"role": "user", "content": parts}],
            [{"role": "user", "content": text}, *tail],
        )
    )
    assert (plain.keys.data, plain.session) == (listed.keys.data, listed.session)
    assert longer.keys.first(plain.keys.count).data == plain.keys.data
    assert longer.prefix == plain.prefix != b""


def test_content_is_what_the_walker_says_for_any_message() -> None:
    """A message of two members takes a shorter way; the third member sends it the long one."""
    for role in ("system", "developer", "user", "assistant", "tool", "function", "x", ""):
        for content in ("", "text", "ünï", None, 5, [], ["a"], [{"type": "text", "text": "a"}]):
            messages = [{"role": role, "content": content}, {"role": "user", "content": "end"}]
            pieces = chat_segments({"messages": messages})
            text = "".join(f"{one.role}\0{one.kind}\0{one.text}\0" for one in pieces)
            content = read_content("chat_completions", {"messages": messages})
            assert "".join(content.parts) == text


def test_a_beginning_is_all_up_to_the_first_question_to_the_byte() -> None:
    """In characters of several bytes too, and wherever in a chunk it ends."""
    for length in range(0, 600, 7):
        system, question = "ö" * length, "ß?"
        begins = {
            read_prompt(asked(body), None).prefix
            for body in (chat(system, question), chat(system, question, "ja", "und?"))
        }
        others = {
            read_prompt(asked(chat(system, other, "ja")), None).prefix
            for other in ("ß!", "ß??", "ß")
        }
        assert len(begins) == 1
        assert len(others) == 3
        assert not begins & others
