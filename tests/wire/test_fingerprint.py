"""What is said to have changed between two requests, and nothing else."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvikk.wire.fingerprint import Fingerprint, compare
from kvikk.wire.segments_messages import messages_segments

_TEXT = st.text(max_size=6)
_TURNS = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": _TEXT}),
    max_size=4,
)
_TOKENS = st.lists(st.integers(0, 3), max_size=12)
_BODIES = st.fixed_dictionaries(
    {
        "model": st.sampled_from("ab"),
        "tools": st.lists(st.fixed_dictionaries({"name": _TEXT}), max_size=2),
        "system": _TEXT,
        "messages": _TURNS,
    }
)


def fingerprint(body: dict[str, Any], tokens: list[int]) -> Fingerprint:
    parameters = {"effort": body.get("effort")}
    return Fingerprint.of(body["model"], messages_segments(body), parameters, tokens)


def marked(body: dict[str, Any]) -> dict[str, Any]:
    """The same, each string as a block that bears a marker."""
    control = {"cache_control": {"type": "ephemeral"}}
    messages = [
        turn | {"content": [{"type": "text", "text": turn["content"], **control}]}
        for turn in body["messages"]
    ]
    return body | {"messages": messages, "tools": [tool | control for tool in body["tools"]]}


@given(_BODIES, _TURNS, _TOKENS, _TOKENS)
def test_what_is_added_or_marked_is_no_change(
    body: dict[str, Any], more: list, tokens: list[int], new: list[int]
) -> None:
    longer = marked(body | {"messages": [*body["messages"], *more]})
    told = compare(fingerprint(body, tokens), fingerprint(longer, tokens + new))
    assert told.changed == set()
    assert (told.common_tokens, told.earlier_tokens) == (len(tokens), len(tokens))


@given(_BODIES, _BODIES, _TOKENS, _TOKENS)
def test_what_differs_is_named_and_the_rest_is_not(
    one: dict[str, Any], other: dict[str, Any], left: list[int], right: list[int]
) -> None:
    told = compare(fingerprint(one, left), fingerprint(other, right))
    for name in ("model", "tools"):
        assert (name in told.changed) == (one[name] != other[name])
    assert ("system" in told.changed) == (one["system"] != other["system"])
    before, after = one["messages"], other["messages"]
    is_prefix = after[: len(before)] == before
    assert bool(told.changed & {"messages", "compacted"}) == (not is_prefix)
    agreeing = [a == b for a, b in zip(left, right, strict=False)]
    expected = agreeing.index(False) if False in agreeing else len(agreeing)
    assert told.common_tokens == expected


def test_a_parameter_is_named_by_itself() -> None:
    body: dict[str, Any] = {"model": "a", "messages": []}
    told = compare(fingerprint(body, [1]), fingerprint(body | {"effort": "high"}, [1]))
    assert told.changed == {"effort"}
