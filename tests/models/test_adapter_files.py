"""Adapters that cannot be run are refused in one line that says why."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from kvikk.errors import ModelError
from kvikk.files.adapters import CONFIG_NAME, WEIGHTS_NAME, find_adapter
from kvikk.models.adapter import Adapter, matrices_by_role
from kvikk.models.adapter_reader import load_adapter
from kvikk.models.decoder import Decoder
from tests.backends.random_decoders import Shape, random_decoder

CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
PREFIX = "base_model.model.model.layers.0."
QUERY = f"{PREFIX}self_attn.q_proj"
Tensors = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return random_decoder(Shape())


@pytest.fixture(scope="module")
def experts() -> Decoder:
    return random_decoder(Shape(num_experts=4))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An adapter of the queries of layer 0."""
    write(tmp_path, CONFIG, pair(QUERY, 128, 64))
    return tmp_path


def pair(module: str, rows: int, columns: int, rank: int = 4) -> Tensors:
    return {
        f"{module}.lora_A.weight": np.ones((rank, columns), np.float32),
        f"{module}.lora_B.weight": np.ones((rows, rank), np.float32),
    }


def write(folder: Path, config: dict[str, Any], tensors: Tensors) -> None:
    (folder / CONFIG_NAME).write_text(json.dumps(config))
    save_file(tensors, folder / WEIGHTS_NAME)


def loaded(folder: Path, decoder: Decoder) -> Adapter:
    return load_adapter(find_adapter(str(folder)), decoder)


def refusal(folder: Path, decoder: Decoder) -> str:
    with pytest.raises(ModelError) as caught:
        loaded(folder, decoder)
    message = str(caught.value)
    assert message.startswith(str(folder))
    assert "\n" not in message
    return message


def test_what_an_adapter_is_follows_its_content(folder: Path, decoder: Decoder) -> None:
    adapter = loaded(folder, decoder)
    assert adapter.rank == 4
    assert adapter.num_bytes == 4 * 4 * (128 + 64)
    assert adapter.deltas[0, "query"].scale == 2.0
    assert loaded(folder, decoder).content_digest == adapter.content_digest
    write(folder, {**CONFIG, "lora_alpha": 9}, load_file(folder / WEIGHTS_NAME))
    assert loaded(folder, decoder).content_digest != adapter.content_digest


REFUSED_OPTIONS = {
    "DoRA": {"use_dora": True},
    "modules_to_save": {"modules_to_save": ["lm_head"]},
    "layer_replication": {"layer_replication": [[0, 1]]},
    "bias is 'all'": {"bias": "all"},
    "lora_bias": {"lora_bias": True},
    "peft_type is 'IA3'": {"peft_type": "IA3"},
    "peft_type is None": {"peft_type": None},
    "pissa": {"init_lora_weights": "pissa_niter_4"},
    "from 1 to 256": {"r": 512},
    "r says 0": {"r": 0},
    "r says True": {"r": True},
    "lora_alpha says None": {"lora_alpha": None},
    "lora_alpha says nan": {"lora_alpha": float("nan")},
    "rank_pattern is not an object": {"rank_pattern": [4]},
    "rank_pattern says 'x'": {"rank_pattern": {"q_proj": "x"}},
    "'(', which is no pattern": {"alpha_pattern": {"(": 1.0}},
    "'(?i)q_proj', which is no pattern": {"rank_pattern": {"(?i)q_proj": 4}},
    "99}', which is no pattern": {"rank_pattern": {"q{9999999999999999999999}": 4}},
    "'((((": {"rank_pattern": {"(" * 5000 + "q" + ")" * 5000: 4}},
    "'use_brand_new' is not known": {"use_brand_new": True},
}


@pytest.mark.parametrize("part", REFUSED_OPTIONS)
def test_kinds_that_are_not_plain_lora_are_refused(
    part: str, folder: Path, decoder: Decoder
) -> None:
    write(folder, {**CONFIG, **REFUSED_OPTIONS[part]}, load_file(folder / WEIGHTS_NAME))
    assert part in refusal(folder, decoder)


REFUSED_TENSORS: dict[str, Tensors] = {
    "those that can be adapted are q_proj, k_proj": pair(f"{PREFIX}self_attn.qkv_proj", 256, 64),
    "lm_head": pair("base_model.model.lm_head", 101, 64),
    "adapts layer 2": pair(QUERY.replace("layers.0", "layers.2"), 128, 64),
    "lora_A of 'model.layers.0.self_attn.q_proj' has shape (4, 96), expected (4, 64)": pair(
        QUERY, 128, 96
    ),
    "has shape (64, 4), expected (128, 4)": pair(QUERY, 64, 64),
    "has shape (8, 64), expected (4, 64)": pair(QUERY, 128, 64, rank=8),
    "no matrix A or B": {f"{QUERY}.lora_magnitude_vector": np.ones(128, np.float32)},
    "lacks lora_B": {f"{QUERY}.lora_A.weight": np.ones((4, 64), np.float32)},
    "NaN": {name: values * np.nan for name, values in pair(QUERY, 128, 64).items()},
    "a number beyond 65,504": {
        name: values * np.float32(1e30) for name, values in pair(QUERY, 128, 64).items()
    },
    "under two names": pair(QUERY, 128, 64)
    | pair(QUERY.replace(".model.layers", ".language_model.model.layers"), 128, 64),
    "has no tensors": {},
}


@pytest.mark.parametrize("part", REFUSED_TENSORS)
def test_tensors_of_another_model_or_kind_are_refused(
    part: str, folder: Path, decoder: Decoder
) -> None:
    write(folder, CONFIG, REFUSED_TENSORS[part])
    assert part in refusal(folder, decoder)


def test_experts_are_not_adapted(folder: Path, experts: Decoder) -> None:
    assert loaded(folder, experts).deltas.keys() == {(0, "query")}
    assert matrices_by_role(experts.layers[0]).keys() == {"query", "key", "value", "output"}
    write(folder, CONFIG, pair(f"{PREFIX}mlp.up_proj", 96, 64))
    assert "which random does not have" in refusal(folder, experts)


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "is missing": lambda folder: (folder / WEIGHTS_NAME).unlink(),
    "is a pickle": lambda folder: (folder / WEIGHTS_NAME).rename(folder / "adapter_model.bin"),
    "is no adapter": lambda folder: (folder / CONFIG_NAME).unlink(),
    "is cut short": lambda folder: damage(folder / WEIGHTS_NAME),
    "is no JSON": lambda folder: damage(folder / CONFIG_NAME),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_damaged_files_are_refused(what: str, folder: Path, decoder: Decoder) -> None:
    DAMAGES[what](folder)
    message = refusal(folder, decoder)
    assert ("pickle" in message) == (what == "is a pickle")


@pytest.mark.parametrize("path", ["/nowhere", "/" + "x" * 300, "x/" * 5000, "~nobody-has-it/x"])
def test_a_folder_that_is_not_there_is_refused(path: str) -> None:
    with pytest.raises(ModelError, match="no adapter '") as caught:
        find_adapter(path)
    assert path[:20] in str(caught.value)
    assert len(str(caught.value)) < 400
