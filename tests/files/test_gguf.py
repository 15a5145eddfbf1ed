from contextlib import suppress
from pathlib import Path
from struct import pack
from typing import Any

import gguf
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from kvikk.errors import ModelError
from kvikk.files.gguf import GGUFFile, StringArray, Value, open_gguf
from kvikk.files.gguf_config import config_from_gguf
from kvikk.files.sources import resolve


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file with every metadata type and four tensors, written by the gguf package."""
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("test.uint8", 200)
    writer.add_int8("test.int8", -100)
    writer.add_uint16("test.uint16", 60_000)
    writer.add_int16("test.int16", -30_000)
    writer.add_uint32("test.uint32", 4_000_000_000)
    writer.add_int32("test.int32", -2_000_000_000)
    writer.add_uint64("test.uint64", 1 << 63)
    writer.add_int64("test.int64", -(1 << 62))
    writer.add_float32("test.float32", 0.5)
    writer.add_float64("test.float64", 1e300)
    writer.add_bool("test.bool", True)
    writer.add_string("test.string", "blåbær 🫐")
    writer.add_array("test.strings", ["a", "", "ø", "long " * 100])
    writer.add_array("test.numbers", [1, -2, 3])
    writer.add_array("test.floats", [0.5, 1.5])
    random = np.random.default_rng(3)
    for name, shape in (("a", (3, 64)), ("b", (5,)), ("c", (2, 3, 32))):
        writer.add_tensor(name, random.standard_normal(shape, np.float32))
    quantised = gguf.quants.quantize(
        random.standard_normal((4, 64), np.float32), gguf.GGMLQuantizationType.Q4_1
    )
    writer.add_tensor("d", quantised, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def plain(value: object) -> object:
    if isinstance(value, StringArray):
        assert len(value) == len(list(value))
        return list(value)
    return value.tolist() if isinstance(value, np.ndarray) else value


def test_everything_reads_as_the_gguf_package_reads_it(small_file: Path) -> None:
    ours, theirs = open_gguf(small_file), gguf.GGUFReader(small_file)
    expected = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert {key: plain(value) for key, value in ours.metadata.items()} == expected
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.dtype == tensor.tensor_type.name
        assert mine.shape == tuple(int(size) for size in reversed(tensor.shape))
        np.testing.assert_array_equal(mine.data, tensor.data.reshape(-1).view(np.uint8))


def test_metadata_becomes_the_configuration_that_the_model_was_published_with() -> None:
    smollm2 = config_from_gguf(open_gguf(resolve("smollm2").path))
    assert smollm2["model_type"] == "llama"
    assert smollm2["num_hidden_layers"] == 30
    assert smollm2["hidden_size"] == 576
    assert smollm2["intermediate_size"] == 1536
    assert smollm2["num_attention_heads"] == 9
    assert smollm2["num_key_value_heads"] == 3
    assert smollm2["rope_theta"] == 100000
    assert smollm2["max_position_embeddings"] == 8192
    assert smollm2["vocab_size"] == 49152
    assert smollm2["tie_word_embeddings"] is True
    gemma3 = config_from_gguf(open_gguf(resolve("gemma3-270m").path))
    assert gemma3["model_type"] == "gemma3_text"
    assert gemma3["head_dim"] == 256
    assert gemma3["query_pre_attn_scalar"] == 256
    assert gemma3["sliding_window"] == 512
    assert gemma3["vocab_size"] == 262144


def config_of(metadata: dict[str, Value]) -> dict[str, Any]:
    return config_from_gguf(GGUFFile(Path("test.gguf"), metadata, {}))


def test_stretched_positions_are_read_in_both_of_their_forms() -> None:
    today = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    for metadata in (today, {"llama.rope.scale_linear": 4.0}):
        config = config_of({"general.architecture": "llama", **metadata})
        assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    unstretched = {"general.architecture": "llama", "llama.rope.scaling.type": "none"}
    assert config_of(unstretched)["rope_scaling"] is None


def test_a_rotation_of_a_part_of_each_head_is_told() -> None:
    metadata: dict[str, Value] = {
        "general.architecture": "llama",
        "llama.embedding_length": 512,
        "llama.attention.head_count": 8,
    }
    whole = config_of({**metadata, "llama.rope.dimension_count": 64})
    assert "partial_rotary_factor" not in whole
    half = config_of({**metadata, "llama.rope.dimension_count": 32})
    assert half["partial_rotary_factor"] == 0.5
    wide = {**metadata, "llama.rope.dimension_count": 64, "llama.attention.key_length": 256}
    assert config_of(wide)["partial_rotary_factor"] == 0.25


@pytest.mark.parametrize(("num_layers", "expected"), [(26, 256), (62, 168)])
def test_gemma_divides_scores_by_its_head_size_or_in_27b_by_168(
    num_layers: int, expected: int
) -> None:
    config = config_of(
        {
            "general.architecture": "gemma3",
            "gemma3.block_count": num_layers,
            "gemma3.embedding_length": 5376,
            "gemma3.attention.head_count": 32,
            "gemma3.attention.key_length": 256,
        }
    )
    assert config["query_pre_attn_scalar"] == expected


def read_completely(path: Path) -> None:
    file = open_gguf(path)
    for value in file.metadata.values():
        plain(value)
    config_from_gguf(file)
    for tensor in file.tensors.values():
        tensor.data.sum()


def header_bytes(path: Path) -> int:
    """Where the tensors' data begin."""
    return gguf.GGUFReader(path).data_offset


def test_a_file_cut_anywhere_is_one_line_naming_it(small_file: Path, tmp_path: Path) -> None:
    content = small_file.read_bytes()
    cut = tmp_path / "cut.gguf"
    last_tensor = open_gguf(small_file).tensors["d"]
    padding = -len(last_tensor.data) % 32
    for length in range(0, len(content) - padding, 7):
        cut.write_bytes(content[:length])
        with pytest.raises(ModelError, match=r"cut\.gguf: [^\n]+$"):
            open_gguf(cut)


@given(st.data())
def test_a_damaged_header_is_read_or_refused_and_never_a_traceback(
    small_file: Path, data: st.DataObject
) -> None:
    content = bytearray(small_file.read_bytes())
    end = header_bytes(small_file)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, end - 1))
        content[position] = data.draw(st.integers(0, 255))
    damaged = small_file.with_name("damaged.gguf")
    damaged.write_bytes(content)
    with suppress(ModelError):
        read_completely(damaged)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty"),
        (b"This is a text file, whatever its name says.", "not a GGUF file"),
        (b"GGUF" + pack(">I", 3) + bytes(16), "big-endian"),
        (b"GGUF" + pack("<I", 1) + bytes(16), "version 1"),
        (b"GGUF" + pack("<IQQ", 3, 1 << 60, 0), "cannot hold"),
        (b"GGUF" + pack("<IQQ", 3, 0, 1 << 63), "cannot hold"),
        (b"GGUF" + pack("<IQQQ", 3, 0, 1, 1 << 62) + bytes(64), "truncated"),
    ],
)
def test_what_is_no_gguf_file_is_told_apart(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=problem):
        open_gguf(path)


def tensor_entry(name: str, shape: tuple[int, ...], type_number: int, offset: int) -> bytes:
    return (
        pack("<Q", len(name))
        + name.encode()
        + pack("<I", len(shape))
        + b"".join(pack("<Q", size) for size in shape)
        + pack("<IQ", type_number, offset)
    )


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([("a", (8,), 0, 0), ("a", (8,), 0, 32)], "'a' appears twice"),
        ([("a", (8,), 0, 0), ("b", (8,), 0, 0)], "lies at 0 of the data, not at 32"),
        ([("a", (8,), 0, 64)], "lies at 64 of the data, not at 0"),
        ([("a", (8,), 16, 0)], "type IQ2_XXS, which is not read"),
        ([("a", (8,), 4711, 0)], "type number 4711, which is not read"),
        ([("a", (8,), 2, 0)], "not whole blocks of 32"),
        ([("a", (1 << 40, 1 << 40), 0, 0)], "impossible shape"),
        ([("a", (0,), 0, 0)], "impossible shape"),
        ([("a", (1,) * 9, 0, 0)], "9 dimensions"),
        ([("a", (1 << 20,), 0, 0)], "truncated"),
    ],
)
def test_tensors_that_cannot_be_are_refused(
    entries: list[tuple[str, tuple[int, ...], int, int]], problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    header = b"GGUF" + pack("<IQQ", 3, len(entries), 0)
    path.write_bytes(header + b"".join(tensor_entry(*entry) for entry in entries) + bytes(256))
    with pytest.raises(ModelError, match=problem):
        open_gguf(path)


def test_a_file_that_is_absent_or_a_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        open_gguf(tmp_path / "absent.gguf")
    with pytest.raises(ModelError, match="directory"):
        open_gguf(tmp_path)


def test_a_string_that_is_not_utf8_is_one_line(small_file: Path) -> None:
    content = small_file.read_bytes().replace("ø".encode(), b"\xff\xff")
    damaged = small_file.with_name("not_utf8.gguf")
    damaged.write_bytes(content)
    with pytest.raises(ModelError, match=r"not_utf8\.gguf: .*not UTF-8"):
        read_completely(damaged)
