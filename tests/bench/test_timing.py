"""Positions are counted and add up; paths say the same, and where they do not we say so."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvikk import __version__
from kvikk.bench.kvikk_loop import KvikkLoop
from kvikk.bench.loops import LoopOptions
from kvikk.bench.phases import DECODE_STEPS, PhasePlan, measure_phases
from kvikk.bench.timing import measure_timing, positions_to_compute
from kvikk.bench.timing_run import TimingOptions, run_phases, run_timing
from kvikk.bench.timing_tables import difference_lines, timing_notes
from kvikk.bench.transformers_loop import TransformersLoop
from kvikk.cli.main import main
from kvikk.errors import ModelError, RequestError
from kvikk.files.random_models import SHAPES, write_random_model

GPT2 = dict(SHAPES["gpt2"])
GPT2.update(n_embd=64, n_head=2, n_layer=2, n_positions=256, vocab_size=400)
LLAMA = dict(SHAPES["smollm2-135m"])
LLAMA.update(hidden_size=64, intermediate_size=96, num_hidden_layers=2, vocab_size=400)
LLAMA.update(num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=512)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Small models in two families' files, as ours and transformers read them."""
    folders = {}
    for name, config in {"gpt2": GPT2, "llama": LLAMA}.items():
        folder = tmp_path_factory.mktemp(name)
        write_random_model(folder, config)
        folders[name] = str(folder)
    return folders


def options(model: str, **more: object) -> LoopOptions:
    return LoopOptions(model, ("kvikk", "transformers"), backend="reference", threads=1, **more)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_all_paths_of_both_engines_say_the_same(models: dict[str, str], family: str) -> None:
    report = run_timing(
        options(models[family]),
        TimingOptions((3, 6, 12), 20, 2),
        lambda total: lambda n, text: None,
    )
    assert report.differences == ()
    assert any("token ids are equal: all 4 paths" in note for note in timing_notes(report))
    assert [(row.engine, row.new_tokens) for row in report.rows] == [
        (engine, length) for length in (3, 6, 12) for engine in ("kvikk", "transformers")
    ]
    for row in report.rows:
        fed = range(20, 20 + row.new_tokens)  # without a cache: the prompt, then one more each time
        assert row.uncached.computed_tokens == sum(fed)
        assert row.cached.computed_tokens == fed[-1]
        assert len(row.cached.runs_s) == len(row.uncached.runs_s) == 2


def test_a_prompt_of_one_token_computes_1_2_3_to_n(models: dict[str, str]) -> None:
    loop = KvikkLoop(options(models["llama"]), most_tokens=40, most_sequences=1)
    generated = loop.generate([7], 30, use_cache=False)
    assert generated.computed_tokens == 30 * 31 // 2
    cached = loop.generate([7], 30, use_cache=True)
    assert cached.computed_tokens == 30
    assert cached.token_ids == generated.token_ids


def test_progress_reaches_its_total(models: dict[str, str]) -> None:
    totals: list[int] = []
    steps: list[int] = []

    def bar(total: int):
        totals.append(total)
        return lambda done, text: steps.append(done)

    run_timing(options(models["llama"]), TimingOptions((2, 4), 5, 2), bar)
    assert totals == [sum(steps)] == [2 * positions_to_compute(5, (2, 4), 2)]


def test_other_tokens_are_told_with_the_place_and_the_gap(models: dict[str, str]) -> None:
    ours = KvikkLoop(options(models["llama"]), most_tokens=40, most_sequences=1)
    theirs = TransformersLoop(options(models["gpt2"]))
    prompt = list(range(300, 310))
    report = measure_timing([ours, theirs], prompt, (8,), 1)
    left = ours.generate(prompt, 8, use_cache=True).token_ids
    right = theirs.generate(prompt, 8, use_cache=True).token_ids
    first = next(at for at in range(8) if left[at] != right[at])
    assert {one.other for one in report.differences} == {
        "transformers, cached",
        "transformers, uncached",
    }
    for difference in report.differences:
        assert (difference.position, difference.token_ids) == (first, (left[first], right[first]))
        assert difference.gap < 0  # theirs prefers its own
    assert all("TOKEN IDS DIFFER" in line for line in difference_lines(report.differences))
    assert not any("equal" in note for note in timing_notes(report))


def test_phases_have_every_point_and_leave_nothing_behind(models: dict[str, str]) -> None:
    plan = PhasePlan((16, 32), (1, 64), (1, 3))
    loops = [
        KvikkLoop(options(models["llama"]), most_tokens=160, most_sequences=3),
        TransformersLoop(options(models["llama"])),
    ]
    report = measure_phases(loops, plan, lambda length, index: [300 + index] * length, 1)
    for engine in ("kvikk", "transformers"):
        points = [(row.phase, row.size) for row in report.rows if row.engine == engine]
        assert points == [
            *(("prefill", 16), ("prefill", 32)),
            *(("context", 1), ("context", 64)),
            *(("batch", 1), ("batch", 3)),
        ]
    engine = loops[0].loaded.engine
    assert not engine.has_work
    assert engine.cache.usage().live_blocks == 0
    assert all(row.seconds > 0 for row in report.rows)


def test_phases_stay_within_the_context() -> None:
    plan = PhasePlan.up_to(1024)
    assert max(plan.prompts) + 1 <= 1024
    assert max(plan.contexts) + DECODE_STEPS + 1 <= 1024
    whole = PhasePlan.up_to(8192)
    assert whole.batches == (1, 2, 4, 8, 16, 32, 64)
    assert whole.contexts == (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8000)
    assert whole.prompts == whole.contexts[1:]


def test_phases_say_with_what_they_were_measured(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--backend", "reference", "--dtype", "bf16", "--repeats", "1", "--longest", "200")
    monkeypatch.setattr(
        sys, "argv", ["kvikk", "bench", "timing", models["llama"], "--phases", *options]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    assert ended.value.code == 0, told.err
    assert f"kvikk: {__version__}, reference backend" in told.err
    assert "KV in bf16" in told.err
    assert "a cell is one run" in told.err
    lines = told.out.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    assert lines[-1].startswith("kvikk")
    assert lines.count("") == 2  # between three tables


def test_batches_are_measured_beside_long_contexts(models: dict[str, str]) -> None:
    report = run_phases(
        LoopOptions(models["llama"], backend="reference"),
        1,
        200,
        lambda total: lambda n, text: None,
    )
    assert {row.phase for row in report.rows} == {"prefill", "context", "batch"}
    assert max(row.size for row in report.of("batch")) == 64


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TimingOptions(lengths=()), "lengths: none"),
        (lambda: TimingOptions(lengths=(4, -2)), "-2"),
        (lambda: TimingOptions(lengths=(4, 2)), "grow"),
        (lambda: TimingOptions(prompt_tokens=0), "prompt tokens: 0"),
        (lambda: TimingOptions(repeats=0), "repeats: 0"),
        (lambda: LoopOptions("m", ("vllm",)), "vllm"),
        (lambda: LoopOptions("m", ()), "no engine"),
        (lambda: LoopOptions("m", ("kvikk", "kvikk")), "'kvikk' is named twice"),
        (lambda: LoopOptions("m", ("transformers",), backend="cpu"), "--backend"),
        (lambda: LoopOptions("m", dtype="fp4"), "fp4"),
        (lambda: LoopOptions("m", device="tpu"), "tpu"),
        (lambda: LoopOptions("m", device="cuda"), "--engine transformers"),
    ],
)
def test_what_makes_no_sense_is_refused(make, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        make()


def test_lengths_beyond_the_context_are_refused_before_anything_is_loaded(
    models: dict[str, str],
) -> None:
    with pytest.raises(RequestError, match="256 tokens"):
        run_timing(options(models["gpt2"]), TimingOptions((400,)), lambda total: None)


def test_a_device_that_is_not_there_is_a_clear_error(models: dict[str, str]) -> None:
    with pytest.raises(ModelError, match="no CUDA device"):
        TransformersLoop(LoopOptions(models["llama"], ("transformers",), device="cuda"))


def kvikk(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvikk", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_prints_one_document_and_draws(models: dict[str, str], tmp_path: Path) -> None:
    plot = tmp_path / "timing.svg"
    arguments = ("--lengths", "2,4", "--repeats", "1", "--prompt-tokens", "8", "--plot", str(plot))
    done = kvikk("timing", models["llama"], "--backend", "reference", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["token_ids_equal"] is True
    assert [row["uncached_computed_tokens"] for row in document["rows"]] == [17, 38]
    assert document["rows"][0]["cached_vs_previous"] is None
    assert plot.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("timing", "--lengths", "32,x"), ("32,x", "32,64")),
        (("timing", "--lengths", "-4"), ("-4", "at least 1")),
        (("timing", "no-such-model"), ("no-such-model",)),
        (("timing", "random:gpt9"), ("random:gpt9", "random:gpt2")),
        (("timing", "a", "--model", "b"), ("twice",)),
        (("timing", "--plot", "x.png"), (".svg",)),
        (("timing", "--longest", "64"), ("--longest", "only with --phases")),
        (("timing", "--phases", "--lengths", "8"), ("--lengths", "only without --phases")),
        (("timing", "--phases", "--prompt-tokens", "64"), ("--prompt-tokens", "without --phases")),
        (("memory", "--capacity-tokens", "9"), ("--capacity-tokens", "only with --trace")),
        (("memory", "--block-size", "16"), ("--block-size", "only with --trace")),
        (("memory", "--trace", "x", "--layers", "2"), ("--layers", "only without --trace")),
        (("memory", "llama", "--trace", "x"), ("MODEL", "--trace")),
        (("serve", "--shrink", "0"), ("--shrink", "only with --workload trace")),
        (("serve", "--speed", "1"), ("--speed", "only with --workload trace")),
        (("serve", "--requests", "9"), ("--requests", "--workload fixed or with --workload trace")),
        (("serve", "--workload", "fixed", "--sessions", "3"), ("--sessions", "--workload chat")),
        (("serve", "--workload", "chat", "--trace", "x"), ("--trace", "--workload trace")),
        (("serve", "--trace", "x", "--output-tokens", "9"), ("--output-tokens", "fixed")),
        (
            ("serve", "--base-url", "http://127.0.0.1:9/v1"),
            ("http://127.0.0.1:9/v1 cannot be reached: connection refused; is a server running",),
        ),
        (
            ("serve", "--base-url", "http://localhost:9/v1"),
            ("http://localhost:9/v1 cannot be reached: connection refused; is a server running",),
        ),
        (("serve", "--workload", "x"), ("'--workload': 'x' is not one of 'chat'",)),
        (("serve", "--base-url", "127.0.0.1:9"), ("127.0.0.1:9", "http://")),
        (("serve", "--rate", "0"), ("--rate", "above 0")),
        (("serve", "--rate", "1", "--concurrency", "2"), ("--concurrency",)),
        (("serve", "--output-tokens", "-1"), ("--output-tokens",)),
        (("serve", "--workload", "trace"), ("--trace",)),
        (("serve", "--workload", "trace", "--trace", "/dev/null"), ("no requests",)),
        (("serve", "--workload", "trace", "--trace", "/nowhere"), ("/nowhere",)),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    arguments: tuple[str, ...],
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["kvikk", "bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    assert (ended.value.code, told.out) == (2, "")
    lines = told.err.strip().splitlines()
    assert len(lines) == 1, told.err
    assert all(word in lines[0] for word in words), lines[0]
