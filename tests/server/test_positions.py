"""Where the pieces of a body lie in the tokens that a model's template and tokeniser made of it."""

from dataclasses import dataclass

import pytest

from kvikk.files.sources import resolve
from kvikk.server.billing.prompts import ProviderPrompts
from kvikk.server.keys import Caller
from kvikk.server.question import Prompt, Question
from kvikk.text.chat import ChatTemplate, load_chat_template
from kvikk.text.places import place_parts
from kvikk.text.tokenizer import Tokenizer, load_tokenizer
from kvikk.wire.chat_completions import ChatCompletionRequest
from kvikk.wire.conversation import named_texts
from kvikk.wire.reading import JsonValue

# The file has none; this one is like the model's own.
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>{{ message.role }}\n"
    "{{ message.content | trim }}<end_of_turn>\n{% endfor %}<start_of_turn>model\n"
)
TEXTS = (
    "You answer in one sentence.",
    "Grüße aus Ålesund — 漁港 🐟 and back",
    "12,345.67 km\n\n  indented, and spaces inside   a line",
    "x",
    "What now?",
)


@dataclass(frozen=True)
class Model:
    tokenizer: Tokenizer
    template: ChatTemplate

    def rendered(self, body: dict) -> tuple[str, Question]:
        asked = ChatCompletionRequest.from_json(JsonValue(body))
        text = self.template.render([message.for_template() for message in asked.messages])
        parts = place_parts(text, named_texts(asked.messages))
        tokens = self.tokenizer.encode(text, add_bos=False)
        prompt = Prompt(tokens, "messages", parts)
        return text, Question("chat_completions", body, prompt, asked.generation)


@pytest.fixture(scope="module", params=["smollm2", "gemma3-270m"])
def model(request) -> Model:
    source = resolve(request.param)
    tokenizer = load_tokenizer(source)
    template = load_chat_template(source, tokenizer)
    return Model(tokenizer, template or ChatTemplate(GEMMA_TEMPLATE, tokenizer, "a test"))


def conversation() -> dict:
    roles = ("system", "user", "assistant", "user", "assistant")
    messages = [{"role": role, "content": text} for role, text in zip(roles, TEXTS, strict=True)]
    parts = [{"type": "text", "text": text} for text in ("Two parts.", "The second.")]
    return {"model": "m", "messages": [*messages, {"role": "user", "content": parts}]}


def test_a_piece_ends_with_the_last_token_that_is_all_its_own(model):
    text, question = model.rendered(conversation())
    prompt = ProviderPrompts(model.tokenizer).of(question, Caller(b"", True))
    assert len(prompt.positions) == 7
    assert [position.ends_message for position in prompt.positions] == [True] * 5 + [False, True]
    stop = 0
    tokens = question.prompt.token_ids
    for position, said in zip(prompt.positions, (*TEXTS, "Two parts.", "The second."), strict=True):
        stop += position.num_tokens
        front = model.tokenizer.decode(tokens[:stop], special=True)
        following = model.tokenizer.decode(tokens[: stop + 1], special=True)
        end = text.index(said, len(front) - len(said) - 8) + len(said)
        assert len(front) <= end < len(following), said
    assert stop <= len(tokens) == prompt.num_tokens


def test_a_turn_more_leaves_the_earlier_pieces_as_they_were(model):
    body = conversation()
    prompts = ProviderPrompts(model.tokenizer)
    earlier = {**body, "messages": body["messages"][:4]}
    _, before = model.rendered(earlier)
    _, after = model.rendered(body)
    caller = Caller(b"", True)
    shorter, longer = prompts.of(before, caller), prompts.of(after, caller)
    assert longer.positions[: len(shorter.positions)] == shorter.positions
    reached = sum(position.num_tokens for position in shorter.positions)
    assert shorter.digest_at(reached) == longer.digest_at(reached)
    assert shorter.digest_at(reached) != longer.digest_at(reached + 1)


def test_a_tool_the_template_does_not_show_is_still_part_of_every_key(model):
    body = conversation()
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    prompts, caller = ProviderPrompts(model.tokenizer), Caller(b"", True)
    plain = prompts.of(model.rendered(body)[1], caller)
    tooled = prompts.of(model.rendered({**body, "tools": [tool]})[1], caller)
    assert tooled.positions[0].section == "tools"
    assert not {position.digest for position in plain.positions} & {
        position.digest for position in tooled.positions
    }
    assert plain.digest_at(5) != tooled.digest_at(5)


def test_tenants_and_salts_are_accounts(model):
    _, question = model.rendered(conversation())
    prompts = ProviderPrompts(model.tokenizer)
    one, other = (prompts.of(question, Caller(b"", False, tenant)).account for tenant in ("a", "b"))
    assert one != other
