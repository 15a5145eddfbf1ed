"""Why a prompt did not go on where an earlier one ended, as both vendors' APIs tell it."""

from typing import Any

import pytest

from tests.server.formats import anthropic_client
from tests.server.live import LiveServer

HANDBOOK = "A customer gets an answer within two hours, and never about the weather. " * 6
TOOLS = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in "ab"]
TURN = [{"role": "user", "content": HANDBOOK}]
NEXT = [
    *TURN,
    {"role": "assistant", "content": "Good."},
    {"role": "user", "content": "And at night?"},
]
OTHER = [{"role": "user", "content": HANDBOOK.replace("two", "four")}, *NEXT[1:]]


def respond(server: LiveServer, compared: str | None, said: list, **fields: Any) -> Any:
    options = {} if compared is None else {"comparison_response_id": compared}
    base = {"instructions": "Be brief.", "tools": TOOLS, "max_output_tokens": 1}
    return server.client().responses.create(
        model="smollm2", input=said, **base | fields, prompt_cache_options=options
    )


@pytest.mark.parametrize(
    ("changed", "said", "reason"),
    [
        ({}, NEXT, None),
        ({"tools": TOOLS[::-1]}, NEXT, "tools_changed"),
        ({"instructions": "Be kind."}, NEXT, "input_changed"),
        ({}, OTHER, "input_changed"),
        ({}, NEXT[1:], "input_changed"),
        ({"tools": TOOLS[:1]}, OTHER, "tools_changed"),  # the first of two
        ({"prompt_cache_key": "other"}, NEXT, None),  # of no matter to this cache
    ],
)
def test_a_response_says_what_changed_since_the_compared_one(
    changed: dict, said: list, reason: str | None, idle_server: LiveServer
) -> None:
    before = respond(idle_server, None, TURN)
    assert before.prompt_cache_diagnostics is None
    after = respond(idle_server, before.id, said, **changed)
    told = after.prompt_cache_diagnostics
    if reason is None:
        assert told.type == "cache_hit"
        return
    assert (told.type, told.reason) == ("cache_miss", reason)
    # What the two have in common is what the real cache hit, to the block.
    assert told.comparison_reusable_tokens // 32 * 32 == (
        after.usage.input_tokens_details.cached_tokens
    )
    assert told.cache_missed_tokens == after.usage.input_tokens - told.comparison_reusable_tokens


def test_what_a_third_response_wrote_is_a_hit_all_the_same(idle_server: LiveServer) -> None:
    before = respond(idle_server, None, TURN)
    respond(idle_server, None, OTHER)
    told = respond(idle_server, before.id, OTHER).prompt_cache_diagnostics
    assert told.type == "cache_hit"


def test_a_parameter_is_the_reason_only_where_nothing_was_read(idle_server: LiveServer) -> None:
    before = respond(idle_server, None, TURN, prompt_cache_key="one")
    idle_server.post("/v1/kvikk/cache/reset")
    after = respond(idle_server, before.id, NEXT, prompt_cache_key="two")
    assert after.prompt_cache_diagnostics.reason == "prompt_cache_key_changed"
    idle_server.post("/v1/kvikk/cache/reset")
    evicted = respond(idle_server, after.id, NEXT, prompt_cache_key="two")
    assert evicted.prompt_cache_diagnostics.type == "unavailable"


def test_earlier_turns_that_were_left_out_are_a_compaction(idle_server: LiveServer) -> None:
    before = respond(idle_server, None, NEXT)
    told = respond(idle_server, before.id, [{"role": "user", "content": "So far: 2h."}, NEXT[-1]])
    assert told.prompt_cache_diagnostics.reason == "context_compacted"


def test_a_response_nobody_knows_is_not_found(idle_server: LiveServer) -> None:
    told = respond(idle_server, "resp_nobody", TURN).prompt_cache_diagnostics
    assert told.type == "comparison_response_not_found"


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({}, None),
        ({"tools": [{"name": "b", "input_schema": {}}]}, "tools_changed"),
        ({"system": "Be kind."}, "system_changed"),
        ({"system": "Be kind.", "tools": []}, "tools_changed"),
        ({"messages": OTHER}, "messages_changed"),
        ({"thinking": {"type": "disabled"}}, "unavailable"),
        # A marker that moves is no change, and a string is one block of text.
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "text",
                                "text": HANDBOOK,
                                "cache_control": {"type": "ephemeral"},
                            }
                        ],
                    }
                ]
            },
            None,
        ),
    ],
)
def test_a_message_says_what_changed_since_the_previous_one(
    changed: dict, kind: str | None, idle_server: LiveServer
) -> None:
    client = anthropic_client(idle_server)
    base: dict[str, Any] = {
        "model": "smollm2",
        "max_tokens": 1,
        "system": "Be brief.",
        "tools": [{"name": "a", "input_schema": {}}],
        "messages": TURN,
    }
    before = client.messages.create(**base, diagnostics={"previous_message_id": None})
    assert before.diagnostics is None
    fields = base | {"messages": NEXT} | changed
    after = client.messages.create(**fields, diagnostics={"previous_message_id": before.id})
    if kind is None:
        assert after.diagnostics is None
        return
    assert after.diagnostics.cache_miss_reason.type == kind
    if kind != "unavailable":
        earlier = before.usage.input_tokens + before.usage.cache_creation_input_tokens
        missed = after.diagnostics.cache_miss_reason.cache_missed_input_tokens
        assert 0 < missed <= earlier
        assert (earlier - missed) // 32 * 32 == after.usage.cache_read_input_tokens
    with client.messages.stream(**fields, diagnostics={"previous_message_id": before.id}) as stream:
        assert stream.get_final_message().diagnostics == after.diagnostics
