import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from safetensors.torch import save_file

from kvikk.errors import ModelError
from kvikk.files.quantization import dequantize
from kvikk.files.safetensors import (
    INDEX_NAME,
    open_safetensors,
    open_safetensors_folder,
    weight_files,
)

TENSORS = {
    "f32": torch.randn(3, 5, generator=torch.Generator().manual_seed(1)),
    "f16": torch.randn(4, 2, generator=torch.Generator().manual_seed(2)).half(),
    "bf16": torch.randn(7, generator=torch.Generator().manual_seed(3)).bfloat16(),
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 4),
}


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("safetensors") / "model.safetensors"
    save_file(TENSORS, path, metadata={"format": "pt"})
    return path


def with_header(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(start: int, stop: int, dtype: str = "F32", shape: tuple[int, ...] = (1,)) -> Any:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def test_tensors_read_as_the_safetensors_package_wrote_them(small_file: Path) -> None:
    tensors = open_safetensors(small_file)
    assert tensors.keys() == TENSORS.keys()
    for name, expected in TENSORS.items():
        assert tensors[name].dtype == name.upper() or name in ("scalar", "empty")
        np.testing.assert_array_equal(dequantize(tensors[name]), expected.float().numpy())


def test_a_model_in_several_files_is_read_as_one(tmp_path: Path) -> None:
    files = {"f32": "model-1.safetensors", "f16": "model-2.safetensors"}
    for name, file in files.items():
        save_file({name: TENSORS[name]}, tmp_path / file)
    # A file that the index does not name is not part of the model.
    save_file({"other": TENSORS["bf16"]}, tmp_path / "adapter.safetensors")
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": files}))
    assert open_safetensors_folder(tmp_path).keys() == files.keys()
    assert [path.name for path in weight_files(tmp_path)] == sorted(files.values())


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        ({"weight_map": {"f32": "../model.safetensors"}}, "not the name of a safetensors file"),
        ({"weight_map": {"f32": "/etc/passwd"}}, "not the name of a safetensors file"),
        ({"weight_map": {"f32": "config.json"}}, "not the name of a safetensors file"),
        ({"weight_map": {"f32": "absent.safetensors"}}, r"absent\.safetensors is missing"),
        ({"weight_map": {"f32": 3}}, "no weight_map"),
        ({}, "no weight_map"),
        ({"weight_map": {"absent": "model.safetensors"}}, "'absent' is in none of the files"),
    ],
)
def test_an_index_that_leads_astray_is_refused(
    index: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    save_file({"f32": TENSORS["f32"]}, tmp_path / "model.safetensors")
    (tmp_path / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(ModelError, match=problem):
        open_safetensors_folder(tmp_path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty"),
        (b"abc", "not a safetensors file"),
        ((1 << 60).to_bytes(8, "little") + bytes(100), "not a safetensors file"),
        (with_header(b"{]"), "not valid JSON"),
        (with_header(b"\xff\xfe"), "not UTF-8"),
        (with_header([1]), "expected a JSON object"),
        (with_header(b"[" * 100_000), "not valid JSON"),
        (with_header(b'{"a": 1, "a": 2}'), "appears twice"),
        (with_header({"a": 1}), "no dtype, shape and data_offsets"),
        (with_header({"a": tensor(0, 4, "I64")}, bytes(4)), "type I64; F32, F16 and BF16"),
        (with_header({"a": tensor(0, 4, shape=(-1,))}, bytes(4)), "impossible shape"),
        (with_header({"a": tensor(0, 8)}, bytes(8)), "8 bytes is not F32"),
        (with_header({"a": tensor(0, 4), "b": tensor(0, 4)}, bytes(8)), "begins at 0"),
        (with_header({"a": tensor(0, 4), "b": tensor(2, 6)}, bytes(8)), "begins at 2"),
        (with_header({"a": tensor(4, 8)}, bytes(8)), "begins at 4"),
        (with_header({"a": tensor(-4, 0)}, bytes(8)), "begins at -4"),
        (with_header({"a": tensor(0, 4)}, bytes(3)), "truncated"),
        (with_header({"a": tensor(0, 4)}, bytes(5)), "belong to none"),
    ],
)
def test_a_damaged_file_is_one_line_naming_it(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=rf"model\.safetensors: [^\n]*{problem}[^\n]*$"):
        open_safetensors(path)


@given(st.data())
def test_a_cut_or_changed_file_is_refused_or_read_within_its_bounds(
    small_file: Path, data: st.DataObject
) -> None:
    content = bytearray(small_file.read_bytes())
    damaged = small_file.with_name("damaged.safetensors")
    position = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content = content[:position]
    else:
        content[position] = data.draw(st.integers(0, 255))
    damaged.write_bytes(content)
    try:
        tensors = open_safetensors(damaged)
    except ModelError:
        return
    for read in tensors.values():
        assert dequantize(read).size == read.num_elements
