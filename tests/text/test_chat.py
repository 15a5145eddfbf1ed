import re
import time

import pytest

from kvikk.errors import ModelError, RequestError
from kvikk.text.chat import ChatTemplate, load_chat_template, require_chat_template

CONVERSATIONS = [
    [{"role": "user", "content": "Hi"}],
    [
        {"role": "system", "content": "Be brief. <b>&amp;</b>"},
        {"role": "user", "content": "  two\n\nlines — and 😀 "},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "{{ 7 * 7 }}"},
    ],
    [{"role": "user", "content": ""}],
]
# What templates in the wild use and Jinja's defaults would render otherwise.
CONSTRUCTS = """\
{%- set ns = namespace(found=false) -%}
{{ bos_token }}{% for message in messages %}
    {% if message.role == 'system' %}
        {% continue %}
    {% endif %}
    {%- set ns.found = true %}
[{{ loop.index0 }}|{{ message['role'] | upper }}|{{ message | tojson }}]
{{ message | tojson(indent=2) }}
    {% generation %}{{ message.content | trim }}{% endgeneration %}
{% endfor %}
{% macro mark(name) %}<{{ name }}>{% endmacro %}
{{ mark('a') ~ mark('b') }}{{ 'x' * 3 + 'y' }}{{ '%d %3s %%' % (20261129, 'z') }}
{% if tools %}tools{% elif tools is none %}no tools{% endif %}
{% if add_generation_prompt and ns.found %}{{ eos_token }}assistant{% endif %}"""


@pytest.fixture
def template_of(smollm2_tokenizer):
    return lambda source: ChatTemplate(source, smollm2_tokenizer, "here")


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("source", [None, CONSTRUCTS])
def test_templates_render_as_transformers_renders_them(
    messages, source, smollm2_tokenizer, smollm2_source, template_of, transformers_smollm2_tokenizer
):
    template = (
        template_of(source) if source else load_chat_template(smollm2_source, smollm2_tokenizer)
    )
    for add_generation_prompt in (True, False):
        expected = transformers_smollm2_tokenizer.apply_chat_template(
            messages,
            chat_template=source,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
        )
        rendered = template.render(messages, add_generation_prompt=add_generation_prompt)
        assert rendered == expected


def test_a_null_field_is_no_field(template_of):
    template = template_of("{% for m in messages %}{{ m.content is defined }}{% endfor %}")
    assert template.render([{"role": "assistant", "content": None}]) == "False"


def test_a_template_that_refuses_says_why_in_one_line(template_of):
    template = template_of("{{ raise_exception('roles must\n alternate') }}")
    with pytest.raises(RequestError, match="refuses: roles must alternate") as caught:
        template.render(CONVERSATIONS[0])
    assert caught.value.parameter == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages[0].__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ joiner.__init__.__globals__ }}",
        "{{ self.__init__.__globals__.__builtins__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ strftime_now.__globals__ }}",
        "{{ (messages | attr('__class__')).__base__.x }}",
        "{{ messages[0]['__class__']['__base__']() }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(cycler).x }}",
        "{{ '%s' | format(messages) }}",
        "{{ lipsum.__globals__ }}",
        "{{ dict.mro()[1].__subclasses__() }}",
        "{% set x = namespace(a=cycler) %}{{ x.a.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os.system('id') }}",
    ],
)
def test_a_hostile_template_reaches_neither_interpreter_nor_messages(source, smollm2_tokenizer):
    # Either it is refused, in one line, or the forbidden thing is as if it were not there.
    messages = [{"role": "user", "content": "Hi"}]
    try:
        outcome = ChatTemplate(source, smollm2_tokenizer, "here").render(messages)
    except (RequestError, ModelError) as error:
        outcome = f"refused: {error}"
    assert outcome == "" or re.fullmatch("refused: .+", outcome)
    assert messages == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro g(n) %}{% if n %}{{ g(n-1) }}{{ g(n-1) }}{% endif %}{% endmacro %}{{ g(60) }}",
        "{{ 'x' * 10000000000 }}",
        "{{ [1] * 10000000000 }}",
        "{{ 9 ** 99999999 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ ('%9999s' * 9999) % ((1,) * 9999) }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{% set n=namespace(x='a') %}{% for i in range(99) %}{% set n.x=n.x ~ n.x %}{% endfor %}",
        "{% set n=namespace(x='a') %}{% for i in range(99) %}{% set n.x=n.x + n.x %}{% endfor %}",
        "{% for i in range(50000) %}{{ 'y' * 1000 }}{% endfor %}",
    ],
)
def test_a_template_without_end_is_stopped(source, smollm2_tokenizer):
    with pytest.raises((RequestError, ModelError)):
        ChatTemplate(source, smollm2_tokenizer, "here").render(CONVERSATIONS[0])


def test_what_a_template_may_write_grows_with_the_messages_however_short_they_are(template_of):
    mark = "m" * 100
    template = template_of("{% for message in messages %}" + mark + "{% endfor %}")
    assert template.render([{"role": "user", "content": ""}] * 30_000) == mark * 30_000


def test_the_clock_of_one_rendering_does_not_run_in_the_next(template_of):
    template = template_of("{% for m in messages %}{{ m.role }}{% endfor %}")
    template._environment._clock.deadline_s = time.monotonic() - 1
    template._environment._clock.processor_deadline_s = time.thread_time() - 1
    assert template.render(CONVERSATIONS[0]) == "user"


def test_a_model_without_a_template_says_how_to_give_it_one(gemma3_tokenizer, gemma3_source):
    template = load_chat_template(gemma3_source, gemma3_tokenizer)
    with pytest.raises(RequestError, match=r"--chat-template FILE"):
        require_chat_template(template, "gemma3-270m")


def test_a_template_from_a_file_takes_the_models_place(gemma3_tokenizer, gemma3_source, tmp_path):
    file = tmp_path / "template.jinja"
    file.write_text("{{ bos_token }}{{ messages[0].content }}")
    template = load_chat_template(gemma3_source, gemma3_tokenizer, file)
    assert template.render(CONVERSATIONS[0]) == "<bos>Hi"


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xfe", "not UTF-8"), (b"{% for %}", "not a usable chat template"), (None, "cannot be")],
)
def test_an_unusable_template_file_is_one_clear_line(
    content, message, smollm2_source, smollm2_tokenizer, tmp_path
):
    file = tmp_path / "template.jinja"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ModelError, match=message) as caught:
        load_chat_template(smollm2_source, smollm2_tokenizer, file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
