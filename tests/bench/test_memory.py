"""The formula on real tensors, transformers' and ours; slabs against blocks on a real trace."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvikk.bench.memory import MemoryProof, prove, prove_kvikk, prove_transformers
from kvikk.bench.memory_allocators import (
    Blocks,
    Conversation,
    Slabs,
    compare_allocators,
    read_trace,
    replay,
)
from kvikk.bench.memory_families import TINY
from kvikk.errors import ModelError
from kvikk.files.sources import resolve
from tests.shapes.configurations import published

EXCERPT = Path(__file__).parent / "data" / "mooncake_conversation_excerpt.jsonl"


def held(proof: MemoryProof) -> list[int]:
    assert proof.is_exact, proof.checkpoints
    return [point.held_bytes for point in proof.checkpoints]


@pytest.mark.parametrize("family", sorted(TINY))
def test_transformers_tensors_of_a_tiny_model_are_the_formulas(family: str) -> None:
    (proof,) = prove(family, num_tokens=48)
    assert held(proof)[-1] > 0


def test_smollm2_holds_23040_bytes_a_token_in_16_bits_everywhere() -> None:
    config = resolve("smollm2").config
    theirs = prove_transformers("smollm2", config, (8, 40))
    assert held(theirs) == [8 * 2 * 23_040, 40 * 2 * 23_040]
    ours = prove_kvikk("smollm2", (31, 32, 33), backend="reference", kv_dtype="f32")
    assert held(ours) == [32 * 2 * 23_040, 32 * 2 * 23_040, 64 * 2 * 23_040]


def test_gpt2_holds_73728_bytes_a_token() -> None:
    config = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
    assert held(prove_transformers("gpt2", config, (4, 16))) == [4 * 73_728, 16 * 73_728]


def test_two_layers_of_llama_3_1_8b_come_to_128_kib_a_token_in_all_32() -> None:
    config = published("llama-Meta-Llama-3.1-8B")
    proof = prove_transformers("slice", config, (3, 6), num_layers=2)
    # float32 here, 16 bits there; 2 layers here, 32 there
    assert held(proof)[1] / 6 / 2 * 16 == 128 * 1024
    assert proof.rules[-1] == "in all 32 layers, in bf16: 131,072 bytes a token"


def test_a_window_stops_growing_in_transformers_and_in_ours() -> None:
    """Gemma 3 270M: 15 layers of 511 tokens between two steps, 3 of all; ours in whole blocks."""
    config = resolve("gemma3-270m").config
    theirs = prove_transformers("gemma3-270m", config, (500, 511, 520))
    assert held(theirs) == [
        2048 * (15 * min(tokens, 511) + 3 * tokens) for tokens in (500, 511, 520)
    ]


def test_memory_is_wasted_by_slabs_and_not_by_blocks() -> None:
    """vLLM's paper: 60 to 80 % of the memory is empty inside slabs, under 4 % with blocks."""
    trace = read_trace(EXCERPT)
    whole, longest, blocks = compare_allocators(trace, 500_000, context_tokens=131_072)
    assert whole.inside_share is not None
    assert 0.6 < whole.inside_share < 0.85
    assert whole.served < longest.served < blocks.served
    assert longest.free_sufficed > 0.8 * longest.refused > 0
    assert blocks.inside_share is not None
    assert blocks.inside_share < 0.04
    assert blocks.free_sufficed == 0


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.integers(1, 300), st.integers(1, 100)),
        min_size=1,
        max_size=40,
    ),
    st.integers(50, 1500),
    st.integers(1, 40),
)
def test_every_conversation_ends_once_and_gives_all_back(
    rows: list[tuple[float, int, int]], capacity: int, block_size: int
) -> None:
    trace = [Conversation(*row) for row in sorted(rows)]
    for allocator in (
        Slabs(capacity, lambda one: one.prompt_tokens + 100),
        Blocks(capacity, block_size),
    ):
        before = allocator.free_tokens
        result = replay("one", allocator, capacity, trace, token_s=0.5, step_tokens=block_size)
        assert result.served + result.refused + result.cut_off == len(trace)
        assert allocator.free_tokens == before
        if result.held_share is not None and result.free_share is not None:
            assert 0 <= result.held_share <= 1 - result.free_share + 1e-9


def test_a_slab_needs_one_hole_and_blocks_do_not() -> None:
    """Two of four leave 50 tokens in holes of 25; a third makes them one hole of 75."""
    slabs = Slabs(100, lambda one: one.total_tokens)
    rooms = [slabs.admit(Conversation(0, 20, 5)) for _ in range(4)]
    slabs.free(rooms[0])
    slabs.free(rooms[2])
    assert slabs.free_tokens == 50
    assert slabs.admit(Conversation(0, 30, 5)) is None
    slabs.free(rooms[1])
    assert slabs.admit(Conversation(0, 70, 5)) == (0, 75)


def test_nonsense_is_one_line(tmp_path: Path) -> None:
    bad = tmp_path / "trace.jsonl"
    bad.write_text('{"timestamp": 1}\n')
    with pytest.raises(ModelError, match="line 1"):
        read_trace(bad)
    with pytest.raises(ModelError, match="cannot be read"):
        read_trace(tmp_path)
    with pytest.raises(ModelError, match="8 to"):
        prove("llama", num_tokens=1)


def test_the_verb_prints_each_length_and_whether_it_is_exact() -> None:
    command = [sys.executable, "-m", "kvikk", "bench", "memory"]
    done = subprocess.run(
        [*command, "gpt2", "--tokens", "16", "--json"], capture_output=True, check=True, text=True
    )
    (proof,) = json.loads(done.stdout)["proofs"]
    assert proof["exact"]
    assert [point["num_tokens"] for point in proof["checkpoints"]] == [4, 8, 12, 16]
    done = subprocess.run(
        [*command, "--trace", str(EXCERPT)], capture_output=True, check=True, text=True
    )
    assert "blocks of 32" in done.stdout
