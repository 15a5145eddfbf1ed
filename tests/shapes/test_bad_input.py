"""Whatever is wrong with a configuration is one line, and never a traceback."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvikk.errors import ModelError
from kvikk.files.sources import resolve
from kvikk.shapes.cost import cache_cost, rank_cost
from kvikk.shapes.families import read_shape
from kvikk.shapes.weights import weight_bytes
from tests.shapes.configurations import published, published_names

NAMES = published_names()

JUNK = st.one_of(
    st.sampled_from([None, True, False, 0, -1, 1, 3, 2**31, 10**30, 0.5, float("nan")]),
    st.sampled_from([float("inf"), "", "32", "full_attention", [], [0], [None, 1], {}, {"": 0}]),
    st.lists(st.integers(-2, 200), max_size=100),
    st.lists(st.sampled_from(["full_attention", "sliding_attention", "x"]), max_size=100),
)


def damaged(config: dict[str, Any], data: st.DataObject) -> dict[str, Any]:
    """The configuration with one to three values replaced, anywhere in it."""
    config = json.loads(json.dumps(config))
    for _ in range(data.draw(st.integers(1, 3))):
        part = config
        while isinstance(part, dict) and part:
            key = data.draw(st.sampled_from(sorted(part)))
            if isinstance(part[key], dict) and data.draw(st.booleans()):
                part = part[key]
                continue
            part[key] = data.draw(JUNK)
            break
    return config


@contextmanager
def refused_in_one_line() -> Iterator[None]:
    problem = ""
    try:
        yield
    except ModelError as error:
        problem = str(error)
    assert "\n" not in problem
    assert len(problem) < 500


@given(st.data())
def test_a_damaged_configuration_is_read_or_refused(data: st.DataObject) -> None:
    config = damaged(published(data.draw(st.sampled_from(NAMES))), data)
    with refused_in_one_line():
        shape = read_shape(config)
        cache_cost(shape).bytes_at(10**7)
        rank_cost(shape, tp=8).bytes_at(10**7)
    with refused_in_one_line():
        assert weight_bytes(config) >= 0


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_hidden_layers": -5}, "num_hidden_layers is -5"),
        ({"num_hidden_layers": float("nan")}, "num_hidden_layers is nan"),
        ({"num_hidden_layers": 10**9}, "at most 10000 is possible"),
        ({"num_attention_heads": "many"}, "num_attention_heads is 'many'"),
        ({"head_dim": True}, "head_dim is True"),
        ({"num_key_value_heads": [8, 8]}, "num_key_value_heads does not list 32 layers"),
        ({"layer_types": ["full_attention"] * 31}, "layer_types does not name 32 layers"),
        ({"layer_types": "full_attention"}, "layer_types does not name 32 layers"),
        ({"model_type": "vit"}, "'vit' are not supported.*num_hidden_layers 32.*assume llama"),
        ({"model_type": ["llama"]}, "names no model_type"),
        ({"text_config": [1]}, "text_config is not an object"),
    ],
)
def test_nonsense_is_told_with_the_key(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        read_shape({**published("llama-Meta-Llama-3.1-8B"), **changes})


def test_an_unknown_family_is_read_as_another_where_told() -> None:
    llama = published("llama-Meta-Llama-3.1-8B")
    unknown = {**llama, "model_type": "nonesuch"}
    assert read_shape(unknown, assume="llama") == read_shape(llama)
    del unknown["model_type"]
    assert read_shape(unknown, assume="llama") == read_shape(llama)
    with pytest.raises(ModelError, match="no family 'nonsense' to assume"):
        read_shape(unknown, assume="nonsense")


def test_a_known_family_is_never_read_as_another() -> None:
    gemma = published("gemma2-GaMS-9B-Instruct")
    assert read_shape(gemma, assume="llama") == read_shape(gemma)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"model_type": "llama", "num_hidden_la', "not valid JSON"),
        (b"", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a": ' * 100_000, "not valid JSON"),
        (b'{"num_hidden_layers": ' + b"9" * 100_000 + b"}", "not valid JSON"),
        (b"[1]", "expected a JSON object"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"a": 1, "a": 2}', "appears twice"),
    ],
)
def test_a_file_that_is_no_configuration_is_one_line(
    content: bytes, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=problem) as caught:
        _ = resolve(str(path), weights=False).config
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_file_too_large_for_a_configuration_is_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(300 * 10**6)  # a hole: it takes no room on the disk
    with pytest.raises(ModelError, match="286 MiB of JSON; at most 128 are read"):
        _ = resolve(str(path), weights=False).config


def test_a_folder_with_nothing_and_weights_alone_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="neither a config"):
        resolve(str(tmp_path), weights=False)
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(ModelError, match=r"put its config\.json beside it"):
        resolve(str(tmp_path / "model.safetensors"), weights=False)


@pytest.mark.parametrize(
    ("tp", "problem"), [(0, "0 ranks"), (-1, "-1 ranks"), (3, "8 key/value heads")]
)
def test_ranks_that_cannot_be_are_told(tp: int, problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        rank_cost(read_shape(published("llama-Meta-Llama-3.1-8B")), tp=tp)
