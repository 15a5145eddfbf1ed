"""How many conversations fit, how long they may be, and what a token then costs at least."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvikk.errors import ModelError
from kvikk.shapes.accelerators import ACCELERATORS, accelerator
from kvikk.shapes.capacity import (
    Device,
    context_beyond_weights,
    conversations,
    decode_floor,
    longest_context,
)
from kvikk.shapes.families import read_shape
from kvikk.shapes.reserve.engines import EngineOptions
from kvikk.shapes.sizing import Choices, Sizing
from kvikk.shapes.sizing_input import parse_bandwidth, parse_tokens
from tests.shapes.configurations import published

GIB = 2**30


def sizing(name: str, choices: Choices, weight_bytes: int = 16 * GIB) -> Sizing:
    return Sizing(name, read_shape(published(name)), choices, weight_bytes)


@given(st.integers(1, 10**6), st.integers(1, 10**4), st.integers(0, 10**4), st.integers(1, 100))
def test_the_longest_context_is_the_last_that_fits(
    memory: int, slope: int, fixed: int, many: int
) -> None:
    def bytes_at(tokens: int) -> int:
        return fixed * (tokens > 0) + slope * tokens

    longest = longest_context(memory, bytes_at, many, 5000)
    assert many * bytes_at(longest) <= memory
    assert longest == 5000 or many * bytes_at(longest + 1) > memory
    if longest:
        assert conversations(memory, bytes_at, longest) >= many
    beyond = context_beyond_weights(memory, bytes_at, many, 5000)
    assert beyond == (None if longest == 5000 else longest + 1)


def test_weights_that_leave_nothing_are_refused_with_what_to_do() -> None:
    with pytest.raises(ModelError, match=r"10\.0 GiB.*16\.0 GiB.*--memory.*--tp"):
        _ = Device(10 * GIB, 16 * GIB).cache_bytes
    assert Device(80 * GIB, 16 * GIB, 4 * GIB).cache_bytes == 60 * GIB


def test_a_step_reads_every_weight_and_all_of_the_cache() -> None:
    """16 GB of weights and 64 caches of 1 GB at 3.35 TB/s: 80 / 3350 of a second."""
    floor = decode_floor(16 * 10**9, 10**9, 64, 3.35e12)
    assert floor.step_s == pytest.approx(80 / 3350)
    assert floor.tokens_per_s == pytest.approx(64 * 3350 / 80)
    # 2.5 an hour buy 3,600 s of 2,680 tokens.
    assert floor.cost_per_million_tokens(2.5) == pytest.approx(2.5 / (3600 * 2680) * 1e6)


def test_ranks_share_heads_and_weights_but_not_latents() -> None:
    """Llama 3.1 8B over 8 ranks: an eighth each. DeepSeek V3: every rank holds all of a latent."""
    for name, divided in (("llama-Meta-Llama-3.1-8B", 8), ("deepseek_v3-DeepSeek-V3", 1)):
        choices = Choices(4096, memory_bytes=80 * GIB)
        one = sizing(name, choices)
        eight = sizing(name, replace(choices, options=EngineOptions(tp=8)))
        assert one.cost.bytes_at(4096) == eight.cost.bytes_at(4096)
        assert eight.rank_cost.bytes_at(4096) * divided == one.cost.bytes_at(4096)
        assert eight.conversations(4096) == 78 * GIB // eight.rank_cost.bytes_at(4096)


def test_data_parallel_attention_gives_each_rank_conversations_of_its_own() -> None:
    options = EngineOptions(tp=8, dp_attention=True)
    own = sizing("deepseek_v3-DeepSeek-V3", Choices(4096, memory_bytes=80 * GIB, options=options))
    shared = sizing(
        "deepseek_v3-DeepSeek-V3",
        Choices(4096, memory_bytes=80 * GIB, options=EngineOptions(tp=8)),
    )
    assert own.conversations(4096) == 8 * (shared.conversations(4096) or 0)


def test_llama_cpp_fits_as_many_slots_as_it_has_memory_for() -> None:
    choices = Choices(1000, engine="llamacpp", memory_bytes=80 * GIB)
    model = sizing("llama-Meta-Llama-3.1-8B", choices)
    # 1,024 cells a slot of 128 KiB each
    assert model.conversations(1000) == 64 * GIB // (1024 * 131_072)


def test_devices_are_found_by_any_spelling_and_others_are_refused() -> None:
    assert accelerator("h100") is accelerator("H100")
    assert accelerator("rtx 4090").memory_bytes == 24 * GIB
    assert all(device.memory_gib < 1000 for device in ACCELERATORS.values())
    with pytest.raises(ModelError, match="H100"):
        accelerator("H1000")


@pytest.mark.parametrize(
    ("text", "tokens"), [("8192", 8192), ("8,192", 8192), ("128k", 131_072), ("1M", 2**20)]
)
def test_tokens_are_read_as_people_write_them(text: str, tokens: int) -> None:
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["0", "-1", "nan", "1e9", "99999999999999999999", ""])
def test_contexts_without_sense_are_refused(text: str) -> None:
    with pytest.raises(ModelError, match=r"tokens"):
        parse_tokens(text)


def test_bandwidth_is_decimal_as_data_sheets_say_it() -> None:
    assert parse_bandwidth("3.35TB/s") == 3.35e12
    assert parse_bandwidth("900 GB/s") == 9e11
    for text in ("nan", "-1", "0", "fast"):
        with pytest.raises(ModelError, match="bandwidth"):
            parse_bandwidth(text)
