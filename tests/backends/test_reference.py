"""How a prompt is cut, paged and packed does not change what the reference backend says."""

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from kvikk.backends.base import Batch, SamplingParameters
from kvikk.backends.reference.arithmetic import activate
from kvikk.backends.reference.backend import ReferenceBackend
from kvikk.cache.blocks import BlockCopy
from kvikk.files.sources import resolve
from kvikk.models.decoder import Decoder
from kvikk.models.load import load_decoder
from tests.backends.driver import DrivenSequence, Driver, Piece
from tests.models.small_models import GEMMA3, LLAMA, random_model

# Gemma's window in these tests is 8 tokens, so that most of this prompt has left it.
PROMPT = np.random.default_rng(11).integers(0, 96, 75).tolist()
TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    config = {
        "llama": transformers.LlamaConfig(**LLAMA),
        "gemma3": transformers.Gemma3TextConfig(**GEMMA3),
    }[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    random_model(config).save_pretrained(folder)
    return load_decoder(resolve(str(folder)))


@pytest.fixture(scope="module")
def expected(decoder: Decoder) -> NDArray[np.float32]:
    """All logits of the prompt, run whole, in one block."""
    return Driver(ReferenceBackend(), decoder, 128, block_size=128).all_logits(PROMPT)


def assert_same(logits: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(logits, expected, rtol=0, atol=TOLERANCE)


def poison_free_blocks(driver: Driver) -> None:
    """Fill every block that no sequence holds with NaN: whoever reads one shows it."""
    for group, blocks in enumerate(driver.free):
        num_bytes = len(driver.backend.read(group, blocks))
        driver.backend.write(group, blocks, np.full(num_bytes // 4, np.nan, np.float32).tobytes())


@pytest.mark.parametrize("chunk_tokens", [1, 7, 32, 74])
def test_chunks_do_not_change_the_logits(
    decoder: Decoder, expected: NDArray[np.float32], chunk_tokens: int
) -> None:
    driver = Driver(ReferenceBackend(), decoder, 128, block_size=16)
    assert_same(driver.all_logits(PROMPT, chunk_tokens), expected)


@pytest.mark.parametrize("block_size", [1, 16, 32])
@pytest.mark.parametrize("seed", [0, 1])
def test_block_size_and_placement_do_not_change_the_logits(
    decoder: Decoder, expected: NDArray[np.float32], block_size: int, seed: int
) -> None:
    driver = Driver(ReferenceBackend(), decoder, 160, block_size=block_size, seed=seed)
    assert_same(driver.all_logits(PROMPT, 20), expected)


def test_blocks_given_back_and_blocks_of_nobody_are_never_read(
    decoder: Decoder, expected: NDArray[np.float32]
) -> None:
    driver = Driver(ReferenceBackend(), decoder, 96, block_size=4)
    sequence = driver.new_sequence()
    for position, token in enumerate(PROMPT):
        poison_free_blocks(driver)
        (logits,) = driver.run([Piece(sequence, [token])])
        assert_same(logits[0], expected[position])
        driver.give_back(sequence)
    for group, table in zip(driver.plan.groups, sequence.block_tables, strict=True):
        held = sum(block >= 0 for block in table)
        assert held == (len(table) if group.window_tokens is None else 2)


def test_other_sequences_in_the_batch_do_not_change_the_logits(
    decoder: Decoder, expected: NDArray[np.float32]
) -> None:
    """Sequences at different points, some decoding, some with a chunk, the prompt among them."""
    driver = Driver(ReferenceBackend(), decoder, 1024, block_size=8)
    random = np.random.default_rng(2)
    others = [driver.new_sequence() for _ in range(5)]
    sequence = driver.new_sequence()
    logits = []
    for start in range(0, len(PROMPT), 9):
        chunk = PROMPT[start : start + 9]
        pieces = [
            Piece(other, random.integers(0, 96, 1 + 4 * index).tolist(), num_logits=index % 2)
            for index, other in enumerate(others)
        ]
        pieces.insert(start % 5, Piece(sequence, chunk, num_logits=len(chunk)))
        logits.append(driver.run(pieces)[start % 5])
    assert_same(np.concatenate(logits), expected)


def test_a_copied_block_continues_as_its_source_and_leaves_it_alone(
    decoder: Decoder, expected: NDArray[np.float32]
) -> None:
    """Copy-on-write: a fork shares full blocks and copies the last, half-full one."""
    driver = Driver(ReferenceBackend(), decoder, 256, block_size=16)
    sequence = driver.new_sequence()
    driver.run([Piece(sequence, PROMPT[:40], 0)])
    fork = DrivenSequence(list(sequence.tokens), tuple(map(list, sequence.block_tables)))
    copies = []
    for group, (table, free) in enumerate(zip(fork.block_tables, driver.free, strict=True)):
        source, table[-1] = table[-1], free.pop()
        copies.append(BlockCopy(group, source, table[-1]))
    driver.backend.forward(
        Batch(
            token_ids=np.array([PROMPT[40] ^ 1], np.int32),
            positions=np.array([40], np.int32),
            sequence_rows=np.zeros(1, np.int32),
            block_tables=tuple(np.array([table], np.int32) for table in fork.block_tables),
            logits_rows=np.zeros(0, np.int32),
            copies=tuple(copies),
        )
    )
    (continued,) = driver.run([Piece(sequence, PROMPT[40:], num_logits=35)])
    assert_same(continued, expected[40:])
    (forked,) = driver.run([Piece(fork, PROMPT[40:], num_logits=35)])
    assert_same(forked, expected[40:])


def test_blocks_read_and_written_elsewhere_continue_the_same(
    decoder: Decoder, expected: NDArray[np.float32]
) -> None:
    here = Driver(ReferenceBackend(), decoder, 128, block_size=16, seed=0)
    there = Driver(ReferenceBackend(), decoder, 256, block_size=16, seed=1)
    sequence, moved = here.new_sequence(), there.new_sequence()
    here.run([Piece(sequence, PROMPT[:48], 0)])
    for group, blocks in enumerate(sequence.block_tables):
        moved.block_tables[group].extend(there.free[group].pop() for _ in blocks)
        data = here.backend.read(group, blocks)
        there.backend.write(group, moved.block_tables[group], data)
    moved.tokens.extend(PROMPT[:48])
    (continued,) = there.run([Piece(moved, PROMPT[48:], num_logits=27)])
    assert_same(continued, expected[48:])


def test_bytes_that_are_no_whole_blocks_are_refused(decoder: Decoder) -> None:
    backend = Driver(ReferenceBackend(), decoder, 128).backend
    data = backend.read(0, [0, 1])
    with pytest.raises(ValueError, match="not 2 blocks"):
        backend.write(0, [0, 1], data[:-1])


@pytest.mark.parametrize("kv_dtype", ["f32", "bf16"])
def test_memory_use_is_what_a_recount_finds(decoder: Decoder, kv_dtype: str) -> None:
    driver = Driver(ReferenceBackend(), decoder, 128, kv_dtype=kv_dtype)
    use = driver.backend.memory_use(decoder, driver.plan)
    for group, block_bytes in enumerate(use.block_bytes):
        assert len(driver.backend.read(group, [0])) == block_bytes
    layers = len(decoder.layers)
    attention = 2 * decoder.layers[0].attention.num_heads * decoder.layers[0].attention.head_dim
    keys_values = (
        2 * decoder.layers[0].attention.num_kv_heads * decoder.layers[0].attention.head_dim
    )
    per_layer = 64 * (attention + keys_values) + 3 * 64 * 96
    assert use.weight_bytes == 4 * (layers * per_layer + 96 * 64)
    assert use.activation_bytes > 0


def test_bf16_keys_and_values_are_the_f32_ones_rounded_to_nearest(decoder: Decoder) -> None:
    """In the first layer, whose input no rounding has touched, exactly; in the logits, closely."""
    stored = {}
    logits = {}
    for kv_dtype, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        driver = Driver(ReferenceBackend(), decoder, 128, block_size=96, kv_dtype=kv_dtype)
        sequence = driver.new_sequence()
        (logits[kv_dtype],) = driver.run([Piece(sequence, PROMPT, num_logits=1)])
        data = bytearray(driver.backend.read(0, sequence.block_tables[0]))
        first_layer = 96 * driver.plan.groups[0].key_elements
        stored[kv_dtype] = torch.frombuffer(data, dtype=dtype)[:first_layer]
    assert torch.equal(stored["f32"].bfloat16(), stored["bf16"])
    assert stored["bf16"].abs().sum() > 0
    spread = logits["f32"].std()
    assert 0 < np.abs(logits["bf16"] - logits["f32"]).max() < 0.2 * spread


def test_sampling_without_temperature_takes_the_largest_logit() -> None:
    logits = np.array([[0.0, 3.0, 3.0], [5.0, -1.0, 2.0]], np.float32)
    chosen = ReferenceBackend().sample(logits, [SamplingParameters()] * 2, np.array([0.9, 0.9]))
    assert chosen.tolist() == [1, 0]


@pytest.mark.filterwarnings("error")
def test_activations_equal_those_of_torch_out_to_the_extremes() -> None:
    x = np.concatenate([np.linspace(-12, 12, 1001), [-1e4, -100, 100, 1e4]]).astype(np.float32)
    for name, theirs in (
        ("silu", torch.nn.functional.silu),
        ("gelu_tanh", lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
    ):
        expected = theirs(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(activate(x, name), expected, rtol=1e-5, atol=1e-6)
