"""Parts are found in what a real chat template made of them."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from kvikk.files.sources import resolve
from kvikk.text.chat import ChatTemplate, load_chat_template
from kvikk.text.places import Part, find_place
from kvikk.text.tokenizer import load_tokenizer

TEXTS = st.text(st.sampled_from("ab .\n"), min_size=1, max_size=12).filter(str.strip)


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    source = resolve("smollm2")
    found = load_chat_template(source, load_tokenizer(source))
    assert found is not None
    return found


@settings(deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=5), data=st.data())
def test_every_character_of_a_message_is_found_in_it_or_in_an_equal_text(
    template: ChatTemplate, texts: list[str], data: st.DataObject
) -> None:
    texts = [f"{number} {text}" for number, text in enumerate(texts)]  # each once
    roles = ["system", *["user", "assistant"] * 3]
    messages = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]
    parts = [Part(f"message {i}", f"messages[{i}].content", t) for i, t in enumerate(texts)]
    rendered = template.render(messages)
    number = data.draw(st.integers(0, len(texts) - 1))
    stripped = texts[number].strip()
    inside = data.draw(st.integers(0, len(stripped) - 1))
    start = rendered.index(f"<|im_start|>{roles[number]}\n{stripped}")
    position = start + len(f"<|im_start|>{roles[number]}\n") + inside
    place = find_place(rendered, position, parts)
    assert place is not None
    assert (place.part.path, texts[number][place.offset]) == (
        f"messages[{number}].content",
        rendered[position],
    )


def test_the_templates_own_words_belong_to_no_part(template: ChatTemplate) -> None:
    rendered = template.render([{"role": "user", "content": "hello"}])
    part = Part("message 1", "messages[0].content", "hello")
    for position in (0, rendered.index("hello") - 1, rendered.index("hello") + 5):
        assert find_place(rendered, position, [part]) is None
