"""Models of published shapes: they have the published number of weights, and others read them."""

from math import prod
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from kvikk.errors import ModelError
from kvikk.files.random_models import SHAPES, tensor_sizes, write_random_model
from kvikk.files.sources import ModelSource, resolve
from kvikk.text.tokenizer import load_tokenizer

SMALL_GPT2 = {
    **SHAPES["gpt2"],
    "n_embd": 64,
    "n_head": 2,
    "n_layer": 2,
    "n_positions": 128,
    "vocab_size": 400,
}


# Parameters as their publishers state them.
@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        ("gpt2", 124_439_808),
        ("smollm2-135m", 134_515_008),
        ("llama-3.2-1b", 1_235_814_400),
    ],
)
def test_a_shape_has_the_published_number_of_parameters(shape: str, parameters: int) -> None:
    assert sum(map(prod, tensor_sizes(SHAPES[shape]).values())) == parameters


def test_the_same_model_is_written_every_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_random_model(tmp_path / name, SMALL_GPT2)
    one, two = (ModelSource(name, tmp_path / name).content_digest() for name in ("one", "two"))
    assert one == two


def test_weights_are_those_that_safetensors_reads_and_spread_as_said(tmp_path: Path) -> None:
    write_random_model(tmp_path, SMALL_GPT2)
    theirs = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    ours = ModelSource("small", tmp_path).tensors
    assert {name: array.shape for name, array in theirs.items()} == tensor_sizes(SMALL_GPT2)
    assert all(ours[name].data.tobytes() == array.tobytes() for name, array in theirs.items())
    embedding = theirs["wte.weight"]
    assert embedding.std() == pytest.approx(0.02, rel=0.05)
    assert np.unique(embedding).size > 0.99 * embedding.size


def test_every_token_comes_back_as_itself(tmp_path: Path) -> None:
    write_random_model(tmp_path, SMALL_GPT2)
    tokenizer = load_tokenizer(ModelSource("small", tmp_path))
    words = list(range(256, 400))
    assert tokenizer.encode(tokenizer.decode(words)) == words
    text = "Blåbær, 2 €"
    assert len(tokenizer.encode(text)) == len(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_an_unknown_shape_names_those_that_exist() -> None:
    with pytest.raises(ModelError, match=r"random:gpt3.*random:gpt2"):
        resolve("random:gpt3")
