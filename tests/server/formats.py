"""One conversation asked in each of the three formats, by the vendors' own clients."""

from collections.abc import Callable
from dataclasses import dataclass

import anthropic

from tests.server.live import LiveServer


@dataclass(frozen=True)
class Told:
    """What a client was told: the answer, and tokens read, written, in all, and of the answer."""

    text: str
    read: int
    written: int
    prompt: int
    completion: int


def anthropic_client(server: LiveServer, api_key: str = "none") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key=api_key, max_retries=0)


def ask_chat(server: LiveServer, system: str, user: str, limit: int, stream: bool) -> Told:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    fields = {"model": "smollm2", "messages": messages, "max_tokens": limit, "temperature": 0}
    chat = server.client().chat.completions
    if stream:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *chunks, last = chat.create(**fields, **options)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        usage = last.usage
    else:
        answer = chat.create(**fields)
        text, usage = answer.choices[0].message.content, answer.usage
    details = usage.prompt_tokens_details
    return Told(
        text,
        details.cached_tokens,
        details.cache_write_tokens,
        usage.prompt_tokens,
        usage.completion_tokens,
    )


def ask_responses(server: LiveServer, system: str, user: str, limit: int, stream: bool) -> Told:
    client = server.client()
    fields = {"model": "smollm2", "instructions": system, "input": user, "temperature": 0}
    fields["max_output_tokens"] = limit
    if stream:
        with client.responses.stream(**fields) as events:
            *_, last = events
        response = last.response
    else:
        response = client.responses.create(**fields)
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    details = usage.input_tokens_details
    assert details.cache_write_tokens_details.ttl_30m_tokens == details.cache_write_tokens
    return Told(
        response.output_text,
        details.cached_tokens,
        details.cache_write_tokens,
        usage.input_tokens,
        usage.output_tokens,
    )


def ask_messages(server: LiveServer, system: str, user: str, limit: int, stream: bool) -> Told:
    client = anthropic_client(server)
    fields = {"model": "smollm2", "system": system, "max_tokens": limit}
    fields |= {
        "messages": [{"role": "user", "content": user}],
        "extra_body": {"temperature": 0},
    }
    if stream:
        with client.messages.stream(**fields) as events:
            message = events.get_final_message()
    else:
        message = client.messages.create(**fields)
    usage = message.usage
    read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    assert usage.cache_creation.ephemeral_5m_input_tokens == written
    return Told(
        "".join(block.text for block in message.content),
        read,
        written,
        usage.input_tokens + read + written,
        usage.output_tokens,
    )


Ask = Callable[[LiveServer, str, str, int, bool], Told]
FORMATS: dict[str, Ask] = {
    "/v1/chat/completions": ask_chat,
    "/v1/responses": ask_responses,
    "/v1/messages": ask_messages,
}
