"""Start-up logs of engines: every figure they print about their cache is found from the model."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from kvikk.errors import ModelError
from kvikk.files.sources import resolve
from kvikk.shapes.dtypes import kv_dtypes
from kvikk.shapes.families import read_shape
from kvikk.shapes.start_logs.check import check_log
from kvikk.shapes.start_logs.records import Comparison, Printed, Subject
from kvikk.shapes.start_logs.variants import variants
from tests.shapes.configurations import published

LOGS = Path(__file__).parent / "logs"

# Log, model, how many figures it prints, and a piece of the rule behind the last.
EXPLAINED = [
    ("llama_cpp_gemma3_270m", "gemma3-270m", 6, "1,024 cells, 15 layers"),
    ("llama_cpp_gemma3_270m_small_steps", "gemma3-270m", 6, "768 cells"),
    ("llama_cpp_gemma3_270m_q8_0", "gemma3-270m", 6, "4,096 cells, 15 layers"),
    ("llama_cpp_smollm2", "smollm2", 2, "1,024 cells, 30 layers"),
    ("llama_cpp_qwen3.5_9b", "qwen3_5-Qwen3.5-9B", 4, "1 copies in float32"),
    ("llama_cpp_qwen3.6_27b_rollback", "qwen3_5-Qwen3.5-27B", 2, "1 + 2 to roll back"),
    ("llama_cpp_deepseek_r1_expanded", "deepseek_v3-DeepSeek-R1", 2, "expanded to heads"),
    ("llama_cpp_deepseek_v3_q8_0", "deepseek_v3-DeepSeek-V3", 1, "32,768 cells"),
    ("sglang_llama_3.1_8b", "llama-Meta-Llama-3.1-8B", 2, "442,750 tokens"),
    (
        "sglang_nemotron_3_nano_tp4",
        "nemotron_h-NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        4,
        "of 4 ranks one",
    ),
    ("vllm_qwen3_30b_a3b_too_long", "qwen3_moe-Qwen3-30B-A3B-FP8", 2, "blocks of 16"),
    ("vllm_first_engine_qwen2.5_vl_7b", "qwen2-qwen2.5-7b-instruct", 3, "blocks of 16"),
    ("vllm_qwen3.5_27b", "qwen3_5-Qwen3.5-27B", 2, "blocks of 784 tokens"),
    ("vllm_qwen3.6_27b_mtp", "qwen3_5-Qwen3.5-27B", 2, "with 1 MTP layer"),
]


def subject(model: str, **options: Any) -> Subject:
    config = published(model) if "-" in model and model[0] != "g" else resolve(model).config
    shape = read_shape(config)
    return Subject(shape, variants=variants(config, shape), **options)


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "start.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def figures(comparisons: tuple[Comparison, ...]) -> list[tuple[str, str, bool]]:
    return [(one.printed, one.computed, one.agrees) for one in comparisons]


@pytest.mark.parametrize(("log", "model", "count", "rule"), EXPLAINED)
def test_every_printed_figure_is_computed(log: str, model: str, count: int, rule: str) -> None:
    engine, comparisons = check_log(LOGS / f"{log}.log", subject(model))
    assert engine == {"llama": "llama.cpp", "sglan": "SGLang", "vllm_": "vLLM"}[log[:5]]
    assert len(comparisons) == count
    assert all(one.agrees for one in comparisons), figures(comparisons)
    assert rule in comparisons[-1].rule


def test_the_settings_of_one_start_explain_all_its_lines(tmp_path: Path) -> None:
    """Qwen3.5 122B: an MTP layer, a speculative token and two states, though no line says so."""
    log = written(
        tmp_path,
        "Setting attention block size to 4192 tokens to ensure that attention page size is >= mamba"
        " page size.",
        "Available KV cache memory: 24.05 GiB",
        "GPU KV cache size: 482,080 tokens",
        "Maximum concurrency for 262,144 tokens per request: 6.42x",
    )
    model = subject("qwen3_5_moe-Qwen3.5-122B-A10B", dtypes=kv_dtypes("fp8"))
    _, comparisons = check_log(log, model)
    assert all(one.agrees for one in comparisons), figures(comparisons)
    assert len({one.rule for one in comparisons}) == 1
    for words in ("1 MTP layer", "two states", "1 speculative token"):
        assert words in comparisons[0].rule


def test_windows_counted_as_full_attention_are_named(tmp_path: Path) -> None:
    """Llama 4 in April 2025: 24 GiB for a million tokens on each of eight devices."""
    log = written(
        tmp_path,
        "vllm serve Llama-4 --tensor-parallel-size 8",
        "ValueError: To serve at least one request with the models's max seq len (1048576), "
        "(24.00 GiB KV cache is needed, which is larger than the available KV cache memory "
        "(20.00 GiB).",
    )
    _, (comparison,) = check_log(log, subject("llama4-Llama-4-Scout-17B-16E-Instruct"))
    assert comparison.agrees
    assert "windows counted as full attention" in comparison.rule


def test_latents_are_not_divided_among_ranks(tmp_path: Path) -> None:
    log = written(
        tmp_path,
        "vllm serve moonshotai/Kimi-K2-Thinking --tensor-parallel-size 8 --block-size 64",
        "INFO Available KV cache memory: 46.80 GiB",
        "INFO GPU KV cache size: 715,072 tokens",
    )
    _, (comparison,) = check_log(log, subject("kimi_k2-Kimi-K2-Instruct"))
    assert comparison.agrees


def test_a_log_of_another_model_differs_and_says_so() -> None:
    engine, comparisons = check_log(LOGS / "llama_cpp_smollm2.log", subject("gemma3-270m"))
    assert engine == "llama.cpp"
    assert not any(one.agrees for one in comparisons)
    assert "another model's cache" in comparisons[0].rule


def test_a_number_stands_for_all_that_rounds_to_it() -> None:
    assert Printed("5.62").agrees(5.625)
    assert not Printed("5.62").agrees(5.626)
    assert Printed("1,024").agrees(1024.4)


def test_a_text_without_such_lines_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no line about a KV cache"):
        check_log(written(tmp_path, "hello"), subject("smollm2"))
    with pytest.raises(ModelError, match="cannot be read"):
        check_log(tmp_path, subject("smollm2"))
    shutil.rmtree(tmp_path)
    with pytest.raises(ModelError, match="cannot be read"):
        check_log(tmp_path / "start.log", subject("smollm2"))


def test_a_context_that_llama_cpp_s_log_does_not_say_is_inferred(tmp_path: Path) -> None:
    log = tmp_path / "short.log"
    line = "llama_new_context_with_model: KV self size  = {} MiB, K (q8_0): {} MiB, V (f16): {} MiB"
    subject = Subject(read_shape(published("llama-Meta-Llama-3.1-8B")), None)
    log.write_text(line.format("784.00", "272.00", "512.00"))
    _, comparisons = check_log(log, subject)
    assert [one.agrees for one in comparisons] == [True, True]
    assert comparisons[0].rule == "8,192 cells, inferred"
    log.write_text(line.format("785.00", "273.00", "512.00"))
    _, comparisons = check_log(log, subject)
    assert comparisons[0].rule.startswith("512 cells, its default; not this model's heads")
