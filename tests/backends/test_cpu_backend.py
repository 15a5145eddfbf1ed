"""The CPU backend against the reference, over shapes and tensor types; its memory; refusals."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvikk.backends.base import Batch, Plan
from kvikk.backends.cpu.backend import CpuBackend
from kvikk.backends.cpu.blocks import BlockStore
from kvikk.backends.reference.backend import ReferenceBackend
from kvikk.cache.blocks import BlockCopy
from kvikk.errors import ModelError
from kvikk.files.sources import resolve
from kvikk.models.decoder import Decoder
from kvikk.models.load import load_decoder
from kvikk.shapes.shape import CacheGroup, cache_groups
from tests.backends.driver import Driver, Piece
from tests.backends.random_decoders import Shape, in_float32, random_decoder

TOKENS = np.random.default_rng(5).integers(0, 101, 330).tolist()


def differences(
    decoder: Decoder, kv_dtype: str, tokens: list[int], chunk: int
) -> NDArray[np.float32]:
    """Differences from the reference's logits, in units of their spread."""
    expected = Driver(ReferenceBackend(), in_float32(decoder), 512, kv_dtype="f32")
    driver = Driver(CpuBackend(2), decoder, 512, kv_dtype=kv_dtype)
    truth = expected.all_logits(tokens, chunk)
    return np.abs(driver.all_logits(tokens, chunk) - truth) / truth.std()


@pytest.mark.parametrize(
    ("head_dim", "num_heads", "num_kv_heads", "kv_dtype"),
    [
        (64, 3, 3, "f32"),
        (64, 9, 3, "bf16"),
        (96, 4, 2, "bf16"),
        (128, 4, 1, "bf16"),
        (128, 5, 1, "f32"),
        (64, 12, 2, "f32"),
        (64, 14, 2, "bf16"),
        (32, 8, 1, "f32"),
        (256, 4, 1, "bf16"),
        (32, 12, 1, "f32"),
        (80, 2, 2, "bf16"),
        (80, 6, 2, "f32"),
        (112, 14, 2, "bf16"),
        (112, 4, 2, "f32"),
        (160, 6, 1, "bf16"),
        (192, 8, 1, "bf16"),
    ],
)
def test_logits_are_the_references_for_every_head_shape(
    head_dim: int, num_heads: int, num_kv_heads: int, kv_dtype: str
) -> None:
    shape = Shape(head_dim=head_dim, num_heads=num_heads, num_kv_heads=num_kv_heads)
    # Past one piece of 256, in chunks that fit no tile.
    difference = differences(random_decoder(shape), kv_dtype, TOKENS, 101)
    assert difference.max() < (1e-4 if kv_dtype == "f32" else 0.03)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(windows=(48, None, 300), rich=True, activation="gelu_tanh"),
        Shape(hidden_size=80, feed_forward_size=72, vocabulary_size=37, tied=False),
        Shape(biased=True),
        Shape(layer_norms=True, biased=True, gated=False, activation="gelu_tanh", hidden_size=80),
        Shape(gated=False, activation="gelu", feed_forward_size=72),
        Shape(windows=(48, None), rich=True, biased=True, score_cap=0.5, logit_cap=1.5),
        Shape(norms_behind_only=True, windows=(None, 48)),
        Shape(windows=(None,) * 3, rotated=(None, 16, 32), stretch=1.3),
        Shape(head_dim=80, num_heads=6, num_kv_heads=3, rich=True, biased=True),
    ],
    ids=[
        "windows, norms, gelu",
        "odd sizes, untied head",
        "biases",
        "layer norms, learned positions, no gate",
        "exact gelu, no gate",
        "caps",
        "norms behind only",
        "some rotated in part, some not",
        "heads of five registers with norms and biases",
    ],
)
@pytest.mark.parametrize("kv_dtype", ["f32", "bf16"])
def test_logits_are_the_references_for_every_kind_of_layer(shape: Shape, kv_dtype: str) -> None:
    tokens = [token % shape.vocabulary_size for token in TOKENS]
    difference = differences(random_decoder(shape), kv_dtype, tokens, 64)
    assert difference.max() < (1e-4 if kv_dtype == "f32" else 0.03)


@pytest.mark.parametrize(
    "dtypes",
    [
        ("Q4_1",) * 7 + ("Q8_0",),
        ("Q5_0", "Q5_0", "Q8_0", "Q4_K", "Q5_0", "Q5_0", "Q6_K", "Q8_0"),
        ("Q4_0", "Q5_1", "Q4_0", "Q5_K", "Q4_0", "Q5_1", "Q4_0", "Q6_K"),
        ("F16", "Q8_0", "BF16", "F16", "BF16", "Q4_0", "F32", "F16"),
        ("BF16",) * 8,
        ("Q3_K", "Q2_K", "IQ4_NL", "Q3_K", "Q2_K", "Q2_K", "IQ4_NL", "Q2_K"),
    ],
    ids=lambda dtypes: " ".join(dtypes),
)
def test_logits_are_near_the_references_for_every_tensor_type(dtypes: tuple[str, ...]) -> None:
    shape = Shape(hidden_size=256, num_heads=8, feed_forward_size=512, dtypes=dtypes)
    difference = differences(random_decoder(shape), "f32", TOKENS[:40], 40)
    if any(dtype.startswith("Q") for dtype in dtypes):  # then inputs are rounded to int8
        assert np.sqrt(np.mean(difference**2)) < 0.04
    else:
        assert difference.max() < 1e-4


@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
def test_real_models_choose_as_the_reference_does(name: str) -> None:
    decoder = load_decoder(resolve(name))
    # Common words, whatever they say: the second model begins with its start token.
    tokens = [2, *np.random.default_rng(0).integers(300, 3000, 150).tolist()]
    truth = Driver(ReferenceBackend(), decoder, 256, kv_dtype="f32").all_logits(tokens)
    logits = Driver(CpuBackend(2), decoder, 256, kv_dtype="bf16").all_logits(tokens)
    sure = np.sort(truth, axis=1)[:, -1] - np.sort(truth, axis=1)[:, -2] > 1
    assert sure.sum() > 10
    np.testing.assert_array_equal(logits.argmax(axis=1)[sure], truth.argmax(axis=1)[sure])


def test_positions_far_on_turn_as_the_references_do() -> None:
    decoder = random_decoder(Shape(windows=(16, 16), rich=True))
    decoder = dataclasses.replace(decoder, context_tokens=32_768)
    start, count = 32_700, 68
    tables = np.full((1, 1024), -1, np.int32)
    tables[0, (start - 15) // 32 :] = np.arange(3)
    rows = np.arange(count, dtype=np.int32)
    batch = Batch(rows, rows + start, rows * 0, (tables,), rows)
    truth = Driver(ReferenceBackend(), decoder, 128).backend.forward(batch)
    logits = Driver(CpuBackend(2), decoder, 128).backend.forward(batch)
    assert np.abs(logits - truth).max() / truth.std() < 1e-4


def small_driver(kv_dtype: str = "bf16", **changes: object) -> Driver:
    shape = Shape(windows=(None, 48), **changes)  # type: ignore[arg-type]
    return Driver(CpuBackend(1), random_decoder(shape), 128, kv_dtype=kv_dtype, max_batch_tokens=64)


def test_memory_use_is_what_load_takes() -> None:
    driver = small_driver()
    backend, plan = driver.backend, driver.plan
    use = backend.memory_use(driver.decoder, plan)
    assert use.weight_bytes == backend._weights.region.num_bytes
    assert use.activation_bytes == backend._workspace.region.num_bytes
    assert use.block_bytes == tuple(store.block_bytes for store in backend._blocks)
    for group, num_bytes in zip(plan.groups, use.block_bytes, strict=True):
        assert num_bytes == group.elements_per_token * plan.block_size * 2
        index = plan.groups.index(group)
        assert len(backend.read(index, [0, 1])) == 2 * num_bytes


def test_memory_is_a_process_own() -> None:
    # What is shared with children seldom has huge pages, and with them a token takes a sixth less.
    script = (
        "import os; from kvikk.backends.cpu.memory import zero_bytes; memory = zero_bytes(1 << 22);"
        "child = os.fork();"
        "child or (memory.fill(1), os._exit(0));"
        "os.waitpid(child, 0); print(memory.any())"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout == "False\n"


def test_blocks_written_back_elsewhere_continue_with_the_same_bits() -> None:
    driver = small_driver()
    original = driver.new_sequence()
    driver.prefill(original, TOKENS[:40])
    moved = driver.new_sequence()
    moved.tokens = list(original.tokens)
    for group, (table, other) in enumerate(
        zip(original.block_tables, moved.block_tables, strict=True)
    ):
        other += [driver.free[group].pop() for _ in table]
        driver.backend.write(group, other, driver.backend.read(group, table))
    (here,) = driver.run([Piece(original, [7])])
    (there,) = driver.run([Piece(moved, [7])])
    np.testing.assert_array_equal(here, there)


def test_copied_blocks_are_the_same_and_leave_the_source_alone() -> None:
    driver = small_driver()
    sequence = driver.new_sequence()
    driver.prefill(sequence, TOKENS[:20])
    before = driver.backend.read(0, sequence.block_tables[0])
    forked = driver.new_sequence()
    forked.tokens = list(sequence.tokens)
    copies = []
    for group, (table, other) in enumerate(
        zip(sequence.block_tables, forked.block_tables, strict=True)
    ):
        other.append(driver.free[group].pop())
        copies.append(BlockCopy(group, table[0], other[0]))
    batch = Batch(
        np.array([9], np.int32),
        np.array([20], np.int32),
        np.zeros(1, np.int32),
        tuple(np.array([table], np.int32) for table in forked.block_tables),
        np.zeros(1, np.int32),
        tuple(copies),
    )
    forked_logits = driver.backend.forward(batch).copy()
    assert driver.backend.read(0, sequence.block_tables[0]) == before
    (logits,) = driver.run([Piece(sequence, [9])])
    np.testing.assert_array_equal(logits, forked_logits)


def test_blocks_of_another_length_are_refused() -> None:
    driver = small_driver()
    with pytest.raises(ValueError, match="cannot be filled"):
        driver.backend.write(0, [0], b"short")
    with pytest.raises(ValueError, match="not one of"):
        driver.backend.read(0, [4])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"positions": [0, 2]}, "consecutive"),
        ({"positions": [2047, 2048]}, "beyond the planned context"),
        ({"positions": [-1, 0]}, "negative"),
        ({"sequence_rows": [1, 1]}, "numbered"),
        ({"sequence_rows": [0, 2]}, "numbered"),
        ({"sequence_rows": [0, 1]}, "numbered"),
        ({"token_ids": [0, 101]}, "vocabulary"),
        ({"token_ids": [0]}, "a batch of 1 tokens"),
        ({"logits_rows": [2]}, "logits"),
        ({"logits_rows": [1, 0]}, "logits"),
        ({"block_tables": [[4]]}, "block table"),
        ({"block_tables": [[-1]]}, "block table"),
        ({"positions": [31, 32]}, "block table"),
        ({"block_tables": [0]}, "arrays"),
        ({"copies": (BlockCopy(0, 1, 4),)}, "block 4 is not one of 4"),
        ({"copies": (BlockCopy(0, -1, 1),)}, "block -1 is not one of 4"),
        ({"copies": (BlockCopy(2, 0, 1),)}, "group 2"),
        ({"copies": (BlockCopy(-1, 0, 1),)}, "group -1"),
    ],
    ids=lambda value: str(value),
)
def test_a_batch_that_leads_outside_is_refused_and_changes_no_block(
    changes: dict[str, Any], told: str
) -> None:
    driver = small_driver()
    driver.backend.write(0, [1], b"\x01" * len(driver.backend.read(0, [1])))
    before = [driver.backend.read(group, range(4)) for group in (0, 1)]
    copies = changes.get("copies", (BlockCopy(0, 1, 2),))
    fields = {
        "token_ids": [1, 2],
        "positions": [0, 1],
        "sequence_rows": [0, 0],
        "logits_rows": [1],
        "block_tables": [[0]],
    }
    fields |= {name: value for name, value in changes.items() if name != "copies"}
    arrays = {name: np.array(value, np.int32) for name, value in fields.items()}
    tables = arrays.pop("block_tables")
    batch = Batch(block_tables=(tables, tables), copies=copies, **arrays)
    with pytest.raises(ValueError, match=told):
        driver.backend.forward(batch)
    assert [driver.backend.read(group, range(4)) for group in (0, 1)] == before


def test_models_that_cannot_run_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = random_decoder(Shape())
    groups = cache_groups(decoder.shape)
    plan = small_driver().plan
    with pytest.raises(ModelError, match="heads of 40"):
        CpuBackend(1).memory_use(random_decoder(Shape(head_dim=40)), plan)
    other_type = dataclasses.replace(plan, groups=groups, kv_dtype="q8_0")
    with pytest.raises(ModelError, match="KV data type 'q8_0'"):
        CpuBackend(1).memory_use(decoder, other_type)
    other_blocks = dataclasses.replace(plan, groups=groups, block_size=24)
    with pytest.raises(ModelError, match="block size of 24"):
        CpuBackend(1).memory_use(decoder, other_blocks)
    monkeypatch.setenv("KVIKK_CPU", "sse")
    with pytest.raises(ModelError, match="KVIKK_CPU=sse"):
        CpuBackend(1)


def test_a_touched_block_has_its_memory_and_what_it_held() -> None:
    group = CacheGroup(tuple(range(16)), 1024, 1024, None)
    plan = Plan((group,), (4,), 256, "f32", 256, 1, 1024)
    store = BlockStore(group, 4, plan)  # of 32 MiB each
    store.write([0], data := bytes(range(256)) * (store.block_bytes // 256))
    before = resident_bytes()
    store.touch(0)
    assert resident_bytes() - before < store.block_bytes // 2
    store.touch(2)
    assert resident_bytes() - before > store.block_bytes // 2
    assert store.read([0]) == data
    assert not any(store.read([2]))
    with pytest.raises(ValueError, match="block 4"):
        store.touch(4)


def resident_bytes() -> int:
    """What this process has of its own."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
