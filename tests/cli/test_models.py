"""``kvikk pull``, ``list`` and ``rm`` as a shell sees them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def kvikk(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"KVIKK_HOME": str(home), "HF_HOME": str(home / "hub")}
    command = [sys.executable, "-m", "kvikk", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def names(home: Path) -> dict[str, dict]:
    listed = json.loads(kvikk(home, "list", "--json").stdout)["models"]
    return {model["name"]: model for model in listed}


def test_a_model_is_made_listed_and_removed(tmp_path: Path) -> None:
    before = names(tmp_path)
    assert before["smollm2"]["origin"] == "package"
    assert before["smollm2"]["size_bytes"] == Path(before["smollm2"]["path"]).stat().st_size
    pulled = kvikk(tmp_path, "pull", "random:llama-tiny")
    assert (pulled.returncode, pulled.stdout) == (2, "")
    folder = tmp_path / "random" / "gpt2-1"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert names(tmp_path)["random:gpt2"]["size_bytes"] == 2
    removed = kvikk(tmp_path, "rm", "random:gpt2")
    assert removed.returncode == 0
    assert removed.stdout.startswith("removed random:gpt2")
    assert not folder.exists()
    assert names(tmp_path).keys() == before.keys()


@pytest.mark.parametrize(
    ("model", "reason"),
    [("nobody/nothing", "no model 'nobody/nothing' here"), ("smollm2", "comes with a Python")],
)
def test_what_cannot_be_removed_is_said_in_one_line(
    model: str, reason: str, tmp_path: Path
) -> None:
    refused = kvikk(tmp_path, "rm", model)
    assert refused.returncode == 2
    assert reason in refused.stderr
    assert refused.stderr.count("\n") == 1
