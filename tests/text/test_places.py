"""Parts are found in what a real chat template made of them."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kvikk.files.sources import resolve
from kvikk.text.chat import ChatTemplate, load_chat_template
from kvikk.text.places import part_at, place_parts
from kvikk.text.tokenizer import load_tokenizer

TEXTS = st.text(st.sampled_from("ab .\n"), min_size=1, max_size=12).filter(str.strip)


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    source = resolve("smollm2")
    found = load_chat_template(source, load_tokenizer(source))
    assert found is not None
    return found


@given(texts=st.lists(TEXTS, min_size=1, max_size=5), data=st.data())
def test_every_character_of_a_message_is_found_in_it(
    template: ChatTemplate, texts: list[str], data: st.DataObject
) -> None:
    texts = [f"{number} {text}" for number, text in enumerate(texts)]  # each once
    roles = ["system", *["user", "assistant"] * 3]
    messages = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]
    rendered = template.render(messages)
    named = [(f"message {i}", f"messages[{i}].content", text) for i, text in enumerate(texts)]
    parts = place_parts(rendered, named)
    number = data.draw(st.integers(0, len(texts) - 1))
    stripped = texts[number].strip()
    inside = data.draw(st.integers(0, len(stripped) - 1))
    mark = f"<|im_start|>{roles[number]}\n"
    part = part_at(parts, rendered.index(mark + stripped) + len(mark) + inside)
    assert part is not None
    assert part.path == f"messages[{number}].content"
    assert rendered[part.start : part.stop] == stripped


def test_the_templates_own_words_belong_to_no_part(template: ChatTemplate) -> None:
    rendered = template.render([{"role": "user", "content": "hello"}])
    parts = place_parts(rendered, [("message 1", "messages[0].content", "hello")])
    for position in (0, rendered.index("hello") - 1, rendered.index("hello") + 5):
        assert part_at(parts, position) is None


def test_a_part_that_a_template_leaves_out_is_left_out() -> None:
    parts = place_parts(
        "the rules. hi", [("a", "a", "not there"), ("b", "b", " hi\n"), ("c", "c", "")]
    )
    assert [(part.name, part.start, part.stop) for part in parts] == [("b", 11, 13)]
