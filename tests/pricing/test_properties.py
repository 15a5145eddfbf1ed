"""Over random conversations, rules, clocks and caches: prompts are tiled, and nothing is read that
was not there.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from kvikk.pricing.caching import Steps
from kvikk.pricing.prices import bill
from kvikk.pricing.provider_cache import Held, ProviderCache
from tests.pricing.prompts import TEMPLATE_TOKENS, Piece, caching, prompt, rules, words

NAMES = (
    "openai:gpt-4o",
    "openai:gpt-5.4",
    "openai:gpt-5.5",
    "openai:gpt-5.6-sol",
    "anthropic:claude-opus-5",
    "anthropic:claude-haiku-4-5",
    "gemini:gemini-2.5-flash",
    "deepseek:deepseek-v4-flash",
    "xai:grok-5",
)
BLOCK_SIZE = 32

pieces = st.builds(
    lambda seed, count, role, ends, marker, kind: Piece(
        words(seed, count), role, "messages", kind, ends, marker
    ),
    seed=st.integers(1, 3),
    count=st.sampled_from([1, 40, 600, 1030, 2500]),
    role=st.sampled_from(["user", "assistant", "tool"]),
    ends=st.booleans(),
    marker=st.sampled_from([None, None, "", "1h"]),
    kind=st.sampled_from(["text", "text", "tool_use", "tool_result"]),
)
systems = st.builds(
    lambda seed, count, marker: Piece(words(seed, count), "system", "system", marker=marker),
    seed=st.integers(1, 2),
    count=st.sampled_from([20, 1100, 4200]),
    marker=st.sampled_from([None, ""]),
)
conversations = st.tuples(st.lists(systems, max_size=1), st.lists(pieces, min_size=1, max_size=6))
requests = st.lists(
    st.tuples(
        conversations,
        st.integers(1, 6),  # how far into its conversation a request is
        st.sampled_from([0, 1, 100, 299, 2000, 90_000]),  # seconds since the one before
        st.sampled_from([0, 1, 5]),  # seconds until its response begins
        st.floats(0, 1),  # the share of its blocks that the cache holds
        st.sampled_from(["", "low"]),
        st.sampled_from(["", "a"]),
        st.booleans(),
    ),
    min_size=2,
    max_size=8,
)


@settings(max_examples=150)
@given(st.sampled_from(NAMES), st.lists(conversations, min_size=1, max_size=2), requests)
def test_read_written_and_plain_are_the_prompt_and_what_is_read_was_written_and_held(
    name, kept, asked
):
    rule_set, cache = rules(name), ProviderCache(caching(name))
    now_s = 0.0
    written: list[tuple[float, tuple[int, ...]]] = []  # an oracle of what could have been read
    for index, (own, turns, gap_s, wait_s, share, effort, key, explicit) in enumerate(asked):
        first, rest = kept[index % len(kept)] if index % 3 else own
        now_s += gap_s
        shown = [*first, *rest[:turns]]
        asks = prompt(
            *shown,
            parameters={"reasoning_effort": effort, "thinking": effort},
            cache_key=key,
            explicit=explicit,
        )
        held_blocks = int(share * (asks.num_tokens // BLOCK_SIZE + 1))
        held = Held(held_blocks * BLOCK_SIZE, BLOCK_SIZE)
        decision = cache.bill(asks, started_s=now_s, first_byte_s=now_s + wait_s, held=held)

        counts = (decision.read_tokens, decision.written_tokens, decision.plain_tokens)
        assert sum(counts) == asks.num_tokens == decision.num_tokens
        assert sum(decision.written_by_lifetime.values()) == decision.written_tokens
        read = decision.read_tokens
        assert read // BLOCK_SIZE * BLOCK_SIZE <= held.num_tokens
        assert read == 0 or read >= cache.caching.minimum_tokens
        tokens = (*(token for piece in shown for token in piece.tokens), *TEMPLATE_TOKENS)
        assert read == 0 or any(
            readable_s <= now_s and before[:read] == tokens[:read] for readable_s, before in written
        )
        if isinstance(cache.caching.scheme, Steps):
            assert read % 128 == 0
            assert decision.written_tokens == 0
        written.append((now_s + wait_s, tokens))

        relative = bill(decision, rule_set.prices.relative)
        assert relative.input.unknown or 0 <= relative.input.known <= 2 * asks.num_tokens


@settings(max_examples=60)
@given(st.sampled_from(NAMES), conversations, st.integers(1, 6))
def test_the_same_again_at_once_reads_all_that_a_boundary_reaches(name, conversation, turns):
    first, rest = conversation
    asks = prompt(*first, *rest[:turns])
    cache = ProviderCache(caching(name))
    before = cache.bill(asks, started_s=0, first_byte_s=1)
    after = cache.bill(asks, started_s=1, first_byte_s=2)
    reachable = max(
        (span.stop for span in before.spans if span.reason.value == "new"),
        default=0,
    )
    assert (before.read_tokens, after.read_tokens) == (0, reachable)
    assert {span.reason.value for span in after.spans} <= {
        *("entry", "behind_boundary", "below_minimum", "no_breakpoint")
    }
