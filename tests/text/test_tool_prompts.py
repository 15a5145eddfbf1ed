"""Tools in prompts: as a template has them, and in words where it has none."""

import json

from kvikk.text.chat import ChatTemplate, load_chat_template

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}
CALL = {"name": "weather", "arguments": {"place": "Tromsø"}}
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Rain?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "1", "type": "function", "function": CALL}],
    },
    {"role": "tool", "content": "Snow.", "tool_call_id": "1"},
]
# The shape that templates with tools have.
WITH_TOOLS = """\
{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{% for message in messages %}<{{ message.role }}>{{ message.content }}
{%- for call in message.tool_calls %}{{ call.function | tojson }}{% endfor %}
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""


def test_a_template_with_tools_gets_them_as_transformers_would(
    smollm2_tokenizer, transformers_smollm2_tokenizer
) -> None:
    template = ChatTemplate(WITH_TOOLS, smollm2_tokenizer, "here")
    assert template.knows_tools
    for tools in (None, [WEATHER]):
        expected = transformers_smollm2_tokenizer.apply_chat_template(
            CONVERSATION,
            tools=tools,
            chat_template=WITH_TOOLS,
            tokenize=False,
            add_generation_prompt=True,
        )
        assert template.render(CONVERSATION, tools=tools) == expected


def test_a_template_without_tools_is_told_of_them_in_its_messages(
    smollm2_source, smollm2_tokenizer
) -> None:
    template = load_chat_template(smollm2_source, smollm2_tokenizer)
    assert not template.knows_tools
    system, user, assistant, result, _ = template.render(CONVERSATION, tools=[WEATHER]).split(
        "<|im_start|>"
    )[1:]
    assert system.startswith("system\nBe brief.\n\nYou can call tools.")
    assert json.loads(system.split("<tools>\n")[1].split("\n</tools>")[0]) == WEATHER
    assert user == "user\nRain?<|im_end|>\n"
    called = assistant.removeprefix("assistant\n<tool_call>\n")
    assert json.loads(called.removesuffix("\n</tool_call><|im_end|>\n")) == CALL
    assert result == "user\n<tool_response>\nSnow.\n</tool_response><|im_end|>\n"


def test_without_tools_nothing_is_told(smollm2_source, smollm2_tokenizer) -> None:
    template = load_chat_template(smollm2_source, smollm2_tokenizer)
    plain = CONVERSATION[:2]
    assert template.render(plain, tools=[]) == template.render(plain)
    assert "tools" not in template.render(plain)
    began = template.render_unfinished([*plain, {"role": "assistant", "content": "It may"}])
    assert began.endswith("<|im_start|>assistant\nIt may")
