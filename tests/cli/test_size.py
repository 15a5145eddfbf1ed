"""``kvikk size`` as a shell sees it: published anchors, three figures, one line for nonsense."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.shapes.configurations import DATA
from tests.shapes.test_logs import LOGS

CONFIGS = DATA / "configs"
GIB = 2**30

_LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "torch_dtype": "float16",
    "vocab_size": 32000,
}
_MISTRAL = {**_LLAMA, "model_type": "mistral", "num_key_value_heads": 8}
ANCHORS: dict[str, tuple[dict[str, Any], int, float, int]] = {
    # configuration, its full context, GiB of one conversation there, how many fit beside 16 GB
    "llama-2-7b": ({**_LLAMA, "max_position_embeddings": 4096}, 4096, 2, 32),
    "llama-3-8b": (
        {**_LLAMA, "num_key_value_heads": 8, "max_position_embeddings": 8192},
        8192,
        1,
        64,
    ),
    "mistral-7b-v0.3": (
        {**_MISTRAL, "max_position_embeddings": 32768, "sliding_window": None},
        32768,
        4,
        16,
    ),
    "mistral-7b-v0.1": (
        {**_MISTRAL, "max_position_embeddings": 32768, "sliding_window": 4096},
        32768,
        0.5,
        128,
    ),
}


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvikk", "size", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, text=True)


def figures(*arguments: str | Path) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def written(folder: Path, name: str, config: dict[str, Any]) -> Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("name", ANCHORS)
def test_the_published_anchors_and_how_many_fit(name: str, tmp_path: Path) -> None:
    config, context, gib, fitting = ANCHORS[name]
    found = figures(written(tmp_path, name, config), "--memory", "80GB", "--weights", "16GB")
    assert found["context_tokens"] == context
    assert found["bytes_at_context"] == gib * GIB
    assert found["conversations"] == fitting


def test_what_32_kv_heads_or_no_window_would_cost(tmp_path: Path) -> None:
    path = written(tmp_path, "mistral", ANCHORS["mistral-7b-v0.3"][0])
    found = figures(path, "--what-if", "kv_heads=32", "--memory", "80GB", "--weights", "16GB")
    assert found["bytes_at_context"] == 16 * GIB
    assert found["conversations"] == 4
    assert found["without_what_if"]["bytes_at_context"] == 4 * GIB
    windowed = written(tmp_path, "windowed", ANCHORS["mistral-7b-v0.1"][0])
    assert figures(windowed, "--what-if", "sliding_window=null")["bytes_at_context"] == 4 * GIB


def test_three_figures_and_no_single_one() -> None:
    """Gemma 3 270M: 18 layers, 15 of them with a window of 512, heads of 256; and Qwen3.5-27B."""
    gemma = figures("gemma3-270m", "--context", "32k")
    assert gemma["bytes_per_token"] == 18 * 2 * 256 * 2
    assert gemma["bytes_per_token_at_context"] == 3 * 2 * 256 * 2
    assert gemma["fixed_bytes_per_conversation"] == 0
    assert gemma["bytes_at_context"] == (15 * 512 + 3 * 32768) * 1024
    qwen = figures(CONFIGS / "qwen3_5-Qwen3.5-27B.json")
    assert qwen["fixed_bytes_per_conversation"] == 48 * 3_207_168
    assert qwen["bytes_per_token"] == 16 * 4096


def test_both_what_is_held_and_what_an_engine_reserves_are_told() -> None:
    found = figures("gemma3-270m", "--context", "1000", "--engine", "kvikk")
    full, window = -(-1000 // 32), (511 + 256 - 2) // 32 + 2
    assert found["reserved_bytes"] == (3 * full + 15 * window) * 32 * 1024
    assert found["bytes_at_context"] == (3 * 1000 + 15 * 512) * 1024
    assert any("256" in rule for rule in found["reserved_rules"])


def test_the_formula_is_written_out_in_the_models_numbers() -> None:
    done = run(CONFIGS / "llama-Meta-Llama-3.1-8B.json", "--memory", "80GB", "--weights", "16GB")
    assert "2 · 8 KV heads · 128 · 2 bytes · 32 layers = 131,072 bytes = 128 KiB" in done.stdout
    assert "GB is read as GiB" in done.stdout


def test_keys_and_values_may_be_of_different_types() -> None:
    """Qwen3-235B at 65,536: K q8_0 3,196 MiB, V f16 6,016, as llama.cpp printed."""
    path = CONFIGS / "qwen3_moe-Qwen3-235B-A22B-FP8.json"
    found = figures(path, "--context", "65536", "--kv-dtype", "f16", "--k-dtype", "q8_0")
    assert found["bytes_at_context"] == (3196 + 6016) * 2**20


def test_a_draft_model_and_mtp_layers_add_their_cache() -> None:
    target = CONFIGS / "llama-Meta-Llama-3.1-70B.json"
    small = CONFIGS / "llama-Meta-Llama-3.1-8B.json"
    alone = figures(target)["bytes_per_token"]
    assert figures(target, "--draft", small)["bytes_per_token"] == alone + 131_072
    assert figures(target, "--mtp", "2")["bytes_per_token"] == alone + 2 * 4096


def test_bandwidth_and_price_give_a_floor() -> None:
    path = CONFIGS / "llama-Meta-Llama-3.1-8B.json"
    options = ("--gpu", "H100", "--weights", "16GB", "--context", "8192", "--price-per-hour", "2")
    found = figures(path, *options)
    assert found["conversations"] == 64
    assert found["floor_ms_per_token"] == pytest.approx(80 * GIB / 3.35e12 * 1000)
    tokens_per_hour = 64 / (found["floor_ms_per_token"] / 1000) * 3600
    assert found["floor_cost_per_million_tokens"] == pytest.approx(2 / tokens_per_hour * 1e6)
    # One conversation never has more than the weights below the context asked for.
    assert found["context_beyond_weights"] is None


def test_models_stand_side_by_side() -> None:
    names = ("llama-Meta-Llama-3.1-8B", "mistral-mistral-nemo-instruct-2407", "qwen3-Qwen3-8B")
    paths = [CONFIGS / f"{name}.json" for name in names]
    document = figures("--compare", *paths)
    assert [model["model"] for model in document["models"]] == [str(path) for path in paths]
    rows = run("--compare", *paths).stdout.splitlines()
    assert len(rows) == 4
    assert "160 KiB" in rows[2]


def test_one_model_is_compared_with_its_what_if() -> None:
    path = CONFIGS / "llama-Meta-Llama-3.1-8B.json"
    options = ("--context", "32k", "--what-if", "window=4096", "--gpu", "H100")
    rows = run(path, "--compare", *options).stdout.splitlines()
    assert len(rows) == 3
    assert "4.00 GiB" in rows[1]
    assert rows[2].startswith("  with the what-if")
    assert "512 MiB" in rows[2]
    assert rows[0].endswith("ms a token")


def test_a_plot_bends_where_windows_are_full(tmp_path: Path) -> None:
    path = tmp_path / "out.svg"
    done = run("gemma3-270m", "--memory", "8GB", "--plot", path)
    assert done.returncode == 0, done.stderr
    assert path.read_text().startswith("<svg")
    assert "Conversations that fit" in path.read_text()


def test_a_log_is_checked_line_by_line() -> None:
    done = run("gemma3-270m", "--check", LOGS / "llama_cpp_gemma3_270m.log")
    assert done.returncode == 0
    assert "llama.cpp, 6 of 6 figures as computed" in done.stdout
    lines = figures("gemma3-270m", "--check", LOGS / "llama_cpp_gemma3_270m.log")["lines"]
    assert [line["printed"] for line in lines][-2:] == ["7.50 MiB", "7.50 MiB"]


@pytest.mark.parametrize("engine", ["logical", "kvikk", "vllm", "sglang", "llamacpp"])
def test_every_published_configuration_is_sized(engine: str) -> None:
    paths = sorted(CONFIGS.glob("*.json"))
    documents = figures(*paths, "--engine", engine)["models"]
    assert len(documents) == len(paths) >= 53
    for document in documents:
        assert document["bytes_at_context"] > 0
        assert document["weight_bytes"], document["model"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--memory", "-5GB"), ("-5GB",)),
        (("--memory", "nan"), ("nan", "2GiB")),
        (("--memory", "99999999999999TB"), ("more than any machine",)),
        (("--memory", "10GB"), ("10.0 GiB", "--tp")),
        (("--context", "-5"), ("-5", "128k")),
        (("--context", "99999999999999999999"), ("1,099,511,627,776",)),
        (("--price-per-hour", "nan"), ("nan",)),
        (("--bandwidth", "nan"), ("nan", "TB/s")),
        (("--tp", "0"), ("tensor parallelism 0",)),
        (("--tp", "7"), ("8 key/value heads", "7 ranks")),
        (("--slots", "0"), ("slots 0",)),
        (("--kv-dtype", "int3"), ("int3", "q8_0")),
        (("--gpu", "abacus"), ("abacus", "H100")),
        (("--engine", "abacus"), ("abacus", "llamacpp")),
        (("--what-if", "kv_heads"), ("key=value",)),
        (("--what-if", "kv_heads=-3"), ("-3",)),
        (("--what-if", "kv_head=32"), ("no such key", "kv_heads")),
        (("--what-if", "window=-1"), ("-1",)),
        (("--check", "/no/such/log"), ("/no/such/log",)),
        (("--plot", "picture.png"), ("picture.png", "svg")),
        (("--conversations", "0"), ("conversations 0",)),
        (("--mtp", "-1"), ("-1 MTP layers",)),
    ],
)
def test_nonsense_is_one_line_and_status_2(
    arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = run(CONFIGS / "llama-Meta-Llama-3.1-8B.json", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert all(word in done.stderr for word in words), done.stderr


def test_files_that_are_no_language_models_are_one_line(tmp_path: Path) -> None:
    whole = (CONFIGS / "llama-Meta-Llama-3.1-8B.json").read_bytes()
    huge = tmp_path / "huge.json"
    huge.touch()
    os.truncate(huge, 300 * 2**20)
    files = {
        "cut.json": whole[: len(whole) // 2],
        "cut.gguf": b"GGUF\x03\x00\x00\x00\x01",
        "vit.json": b'{"model_type": "vit", "hidden_size": 768, "num_hidden_layers": 12}',
        "unet.json": b'{"_class_name": "UNet2DConditionModel"}',
        "nan.json": b'{"model_type": "llama", "num_hidden_layers": NaN}',
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "empty").mkdir()
    for name in (*files, "huge.json", "empty", "absent"):
        done = run(tmp_path / name)
        assert done.returncode == 2, name
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1, done.stderr


def test_sizing_imports_neither_torch_nor_a_compiler_nor_numpy() -> None:
    program = (
        "import sys; from kvikk.cli.main import main\n"
        f"sys.argv = ['kvikk', 'size', {str(CONFIGS / 'qwen3-Qwen3-8B.json')!r}, '--json']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = ('torch', 'numba', 'llvmlite', 'numpy', 'transformers', 'huggingface_hub')\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"
