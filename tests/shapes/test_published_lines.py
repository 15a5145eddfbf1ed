"""Lines that engines have printed, computed again from the models' keys, to the digits printed."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from kvikk.shapes.cost import Part, cache_cost, rank_cost
from kvikk.shapes.drafts import with_draft, with_mtp
from kvikk.shapes.dtypes import KvDtypes, kv_dtypes
from kvikk.shapes.families import read_shape
from kvikk.shapes.reserve import llama_cpp, vllm
from kvikk.shapes.reserve.llama_cpp import LlamaCppSettings
from kvikk.shapes.reserve.records import Layers, layers_of, with_float_states
from kvikk.shapes.reserve.vllm import VllmLayout, VllmSettings
from kvikk.shapes.shape import ModelShape
from tests.shapes.configurations import published
from tests.shapes.published_lines import models, rows

ROWS, MODELS = rows(), models()
MIB, GIB = 2**20, 2**30

# Rows with figures that their keys do not determine, and why.
NOT_DETERMINED = {
    "vllm-qwen38-flash-gb10": "neither the memory nor the sizes of the recurrent layers are given",
    "vllm-21348-qwen3-235b": "memory of one rank, tokens of the rank with the least",
    "llama-qwen38-flash-next": "its RS line only: the sizes of the recurrent layers are not given",
}


def keys_only(shape: ModelShape, dtypes: KvDtypes) -> int:
    """Bytes a token of the keys alone."""
    layers = tuple(replace(layer, value_elements=0, kv_heads=1) for layer in shape.layers)
    return int(cache_cost(replace(shape, layers=layers), dtypes).bytes_per_token)


def values_only(shape: ModelShape, dtypes: KvDtypes) -> int:
    """Bytes a token of the values alone."""
    return int(cache_cost(shape, dtypes).bytes_per_token) - keys_only(shape, dtypes)


def parts(shape: ModelShape, *kinds: str, tp: int = 1) -> Iterator[tuple[Part, int]]:
    """The parts of these kinds, each with the number of its layers."""
    return (
        (part, count)
        for part, count in rank_cost(shape, None, tp=tp).parts
        if str(part.kind) in kinds
    )


def fixed_bytes(shape: ModelShape, kind: str, tp: int = 1) -> int:
    """Bytes of one sequence's states of this kind."""
    return sum(part.fixed_bytes * count for part, count in parts(shape, kind, tp=tp))


def assert_prints(printed: float, computed: float, digits: int = 2) -> None:
    """``computed`` is printed as ``printed`` with so many digits after the point."""
    assert abs(computed - printed) <= 0.5 * 10**-digits + 1e-9, f"{computed} is not {printed}"


LLAMA_CPP = {
    "ik-r1-mha-512": ("f16", "f16"),
    "ik-dscv2lite-mha": ("f16", "f16"),
    "ik-r1-mla-f16-163840": ("f16", "f16"),
    "ik-v3-mla-q8-32k": ("q8_0", "f16"),
    "ik-dsv25-mla": ("f16", "f16"),
    "ik-kimik2-mha": ("f16", "f16"),
    "llama-v3-mlagguf": ("f16", "f16"),
    "ik-qwen3-235b-mixed": ("q8_0", "f16"),
    "ik-qwen3-30b-a3b": ("f16", "f16"),
    "ik-gemma3-27b-swafull-32k": ("f16", "f16"),
    "ik-glm-z1-32b-q8": ("q8_0", "q8_0"),
    "ik-llama2-13b": ("f16", "f16"),
    "ik-nemotron-ultra-253b": ("q8_0", "q4_0"),
    "ik-llama8b-q51-q50": ("q5_1", "q5_0"),
    "llama-openllama3b": ("f16", "f16"),
    "llama-bge-small": ("f16", "f16"),
    "llama-qwen36-27b-q8": ("q8_0", "q8_0"),
    "llama-qwen38-27b-spec2": ("f16", "f16"),
    "llama-falconh1-1.5b": ("f16", "f16"),
    "llama-qwen25-1.5b-32k": ("f16", "f16"),
    "llama-qwen38-flash-next": ("f16", "f16"),
}


@pytest.mark.parametrize("row", LLAMA_CPP)
def test_llama_cpp_keys_and_values(row: str) -> None:
    dtypes = kv_dtypes(*LLAMA_CPP[row])
    shape, printed = MODELS[row], ROWS[row].printed
    if row == "llama-qwen38-flash-next":  # counted apart, below
        shape = replace(shape, layers=tuple(replace(one, indexer=None) for one in shape.layers))
    cells = ROWS[row].settings.get("n_ctx", 262_144)
    keys, values = keys_only(shape, dtypes) * cells, values_only(shape, dtypes) * cells
    if "K_MiB" in printed:
        assert_prints(printed["K_MiB"], keys / MIB)
        assert_prints(printed["V_MiB"], values / MIB)
    if "total_MiB" in printed:
        assert_prints(printed["total_MiB"], (keys + values) / MIB, digits=1)


def test_llama_cpp_gives_an_indexer_a_cache_with_values_as_long_as_a_head() -> None:
    row = ROWS["llama-qwen38-flash-next"]
    ((part, count),) = parts(MODELS[row.id], "indexer")
    cells = row.settings["n_ctx"]
    assert_prints(row.printed["second_cache_K_MiB"], part.bytes_per_entry * count * cells / MIB)
    head_dim = row.keys["head_dim"]
    assert_prints(row.printed["second_cache_V_MiB"], head_dim * 2 * count * cells / MIB)


@pytest.mark.parametrize(
    ("row", "copies"),
    [("llama-qwen36-27b-q8", 4), ("llama-qwen38-27b-spec2", 3), ("llama-falconh1-1.5b", 1)],
)
def test_llama_cpp_keeps_states_in_f32(row: str, copies: int) -> None:
    """Four sequences; one with two states to go back to; one."""
    shape, printed = with_float_states(MODELS[row]), ROWS[row].printed
    convolution = fixed_bytes(shape, "convolution") * copies / MIB
    recurrent = fixed_bytes(shape, "recurrent") * copies / MIB
    assert_prints(printed.get("R_conv_MiB", printed.get("R_MiB")), convolution)
    assert_prints(printed.get("S_ssm_MiB", printed.get("S_MiB")), recurrent)


@pytest.mark.parametrize(
    ("row", "dtype", "context", "settings"),
    [
        ("llama-laguna-1m-q4", "q4_0", 1_048_576, LlamaCppSettings()),
        (
            "llama-gemma4-12b-4slots",
            "f16",
            8192,
            LlamaCppSettings(slots=4, unified=True, batch_tokens=2048),
        ),
        ("llama-gemma4-12b-32k", "f16", 32_768, LlamaCppSettings(full_windows=True)),
    ],
)
def test_llama_cpp_keeps_windows_apart(
    row: str, dtype: str, context: int, settings: LlamaCppSettings
) -> None:
    cost = cache_cost(MODELS[row], kv_dtypes(dtype))
    sizes = {"non_swa_MiB": 0, "swa_MiB": 0}
    for part, count in cost.parts:
        name, cells = "non_swa_MiB", llama_cpp.full_cells(context, settings)
        if part.window_tokens is not None:
            name, cells = "swa_MiB", llama_cpp.window_cells(context, part.window_tokens, settings)
        sizes[name] += part.bytes_per_entry * count * cells.total
    for name, printed in ROWS[row].printed.items():
        if printed is not None:
            assert_prints(printed, sizes[name] / MIB)


def test_llama_cpp_rounds_each_slots_context_up() -> None:
    row = ROWS["llama-gemma3-270m-3slots"]
    settings = LlamaCppSettings(slots=row.settings["parallel"], full_windows=True)
    layers = layers_of(MODELS[row.id], kv_dtypes("f16"))
    cells = llama_cpp.full_cells(row.settings["ctx"], settings)
    assert cells.total == row.settings["total_cells"]
    reserved = llama_cpp.reserve(layers, row.settings["ctx"], settings)
    assert_prints(row.printed["total_MiB"], reserved.total_bytes / MIB)


@pytest.mark.parametrize("row", ["whisper-base", "whisper-medium", "whisper-base.en-old"])
def test_whisper_cpp_keeps_the_encoders_keys_and_values(row: str) -> None:
    settings, printed = ROWS[row].settings, ROWS[row].printed
    cost = cache_cost(MODELS[row], kv_dtypes("f16"), encoder_tokens=settings["cross_cells"])
    unit, name = (MIB, "MiB") if "kv_self_MiB" in printed else (10**6, "MB")
    itself = cost.bytes_at(settings["self_cells"]) - cost.fixed_bytes
    assert_prints(printed[f"kv_self_{name}"], itself / unit)
    # 150.995 MB is printed as 150.99: a float that lies just below.
    assert_prints(printed[f"kv_cross_{name}"], (cost.fixed_bytes - 1000) / unit)


# What each row was started with, and its layers on a rank.
VLLM: dict[str, tuple[Layers, VllmSettings]] = {
    "vllm-10517-29k": (layers_of(MODELS["vllm-10517-29k"]), VllmSettings()),
    "vllm-granite4-micro": (layers_of(MODELS["vllm-granite4-micro"]), VllmSettings()),
    "vllm-kimi-k2-tp8": (layers_of(MODELS["vllm-kimi-k2-tp8"], tp=8), VllmSettings(block_size=64)),
    "vllm-25350-fp8": (layers_of(MODELS["vllm-25350-fp8"], kv_dtypes("fp8")), VllmSettings()),
    "vllm-16118-llama4": (layers_of(MODELS["vllm-16118-llama4"], tp=8), VllmSettings()),
    "vllm-mistral-small-4": (layers_of(MODELS["vllm-mistral-small-4"]), VllmSettings()),
    "vllm-qwen25-14b-awq": (layers_of(MODELS["vllm-qwen25-14b-awq"]), VllmSettings()),
    "vllm-70b-plus-3b-draft": (
        layers_of(
            with_draft(
                MODELS["vllm-70b-plus-3b-draft"],
                read_shape(
                    {
                        **published("llama-Meta-Llama-3.1-8B"),
                        "num_hidden_layers": 28,
                        "hidden_size": 3072,
                        "num_attention_heads": 24,
                    }
                ),
            ),
            tp=2,
        ),
        VllmSettings(),
    ),
    "vllm-qwen25-vl-7b": (layers_of(MODELS["vllm-qwen25-vl-7b"]), VllmSettings()),
    "vllm-mpt-7b": (layers_of(MODELS["vllm-mpt-7b"]), VllmSettings()),
    "vllm-vicuna-7b": (layers_of(MODELS["vllm-vicuna-7b"]), VllmSettings()),
    "vllm-blocksize-27b-bf16": (layers_of(MODELS["vllm-blocksize-27b-bf16"]), VllmSettings()),
    "vllm-blocksize-35b-a3b": (
        layers_of(MODELS["vllm-blocksize-35b-a3b"], kv_dtypes("fp8")),
        VllmSettings(),
    ),
    "vllm-blocksize-35b-a3b-mtp": (
        layers_of(MODELS["vllm-blocksize-35b-a3b-mtp"], kv_dtypes("fp8")),
        VllmSettings(speculative_tokens=2),
    ),
    "vllm-qwen36-27b-mtp1": (
        layers_of(with_mtp(MODELS["vllm-qwen36-27b-mtp1"], 1)),
        VllmSettings(speculative_tokens=1),
    ),
    "vllm-qwen35-122b-mtp": (
        layers_of(with_mtp(MODELS["vllm-qwen35-122b-mtp"], 1), kv_dtypes("fp8")),
        VllmSettings(speculative_tokens=1, state_blocks=2),
    ),
    "vllm-gemma4-e2b": (layers_of(MODELS["vllm-gemma4-e2b"]), VllmSettings()),
}


def plan_of(row: str) -> VllmLayout:
    plan = vllm.layout(*VLLM[row])
    assert plan is not None
    return plan


def blocks_within(plan: VllmLayout, gib: float) -> range:
    """The numbers of blocks in what is printed as ``gib`` with two digits."""
    low, high = (int((gib + sign * 0.005) * GIB) for sign in (-1, 1))
    return range(plan.num_blocks(low), plan.num_blocks(high) + 1)


def tokens_printed(plan: VllmLayout, num_blocks: int, context: int | None) -> set[int]:
    """As vLLM printed them until 2026, and since then."""
    tokens = {num_blocks // len(plan.groups) * plan.block_size}
    if context is not None:
        tokens.add(int(plan.concurrency(num_blocks, context) * context))
    return tokens


@pytest.mark.parametrize("row", [row for row in VLLM if "tokens" in ROWS[row].printed])
def test_vllm_tokens_in_the_memory_available(row: str) -> None:
    plan, printed = plan_of(row), ROWS[row].printed
    context = ROWS[row].settings.get("max_model_len")
    possible = [
        num_blocks
        for num_blocks in blocks_within(
            plan, printed.get("available_GiB", printed.get("kv_budget_GiB"))
        )
        if printed["tokens"] in tokens_printed(plan, num_blocks, context)
    ]
    assert possible
    if "max_concurrency" in printed:
        nearest = min(
            (plan.concurrency(num_blocks, context) for num_blocks in possible),
            key=lambda times: abs(times - printed["max_concurrency"]),
        )
        # The oldest print divides the tokens and not the blocks.
        divided = printed["tokens"] / context
        assert min(abs(times - printed["max_concurrency"]) for times in (nearest, divided)) <= 0.005
    if "block_size" in ROWS[row].settings:
        assert plan.block_size == ROWS[row].settings["block_size"]


@pytest.mark.parametrize("row", [row for row in VLLM if "needed_GiB" in ROWS[row].printed])
def test_vllm_memory_needed_for_the_longest_request(row: str) -> None:
    plan, printed = plan_of(row), ROWS[row].printed
    needed = plan.request_bytes(ROWS[row].settings["max_model_len"])
    assert_prints(printed["needed_GiB"], needed / GIB)
    if "est_max_len" in printed:
        low, high = (
            plan.longest_context(int((printed["available_GiB"] + sign * 0.005) * GIB), 2**20)
            for sign in (-1, 1)
        )
        assert low <= printed["est_max_len"] <= high


@pytest.mark.parametrize("row", [row for row in VLLM if "cpu_blocks" in ROWS[row].printed])
def test_the_first_vllm_counts_blocks_of_swap_space(row: str) -> None:
    plan, printed = plan_of(row), ROWS[row].printed
    assert plan.num_blocks(ROWS[row].settings["swap_space_GiB"] * GIB) == printed["cpu_blocks"]
    if "available_GiB" in printed:
        assert printed["gpu_blocks"] in blocks_within(plan, printed["available_GiB"])
        context = ROWS[row].settings["max_model_len"]
        assert_prints(
            printed["max_concurrency"], int(printed["gpu_blocks"] * 16 / context * 100) / 100
        )


@pytest.mark.parametrize(
    "row", [row for row in VLLM if "attention_block_size" in ROWS[row].printed]
)
def test_vllm_grows_attention_blocks_to_hold_a_state(row: str) -> None:
    plan, printed = plan_of(row), ROWS[row].printed
    assert plan.block_size == printed["attention_block_size"]
    if "padding_pct" in printed:
        page_bytes = max(group.page_bytes for group in plan.groups)
        assert_prints(printed["padding_pct"], 100 * (page_bytes / plan.state_bytes - 1))


def test_a_ranks_memory_does_not_tell_the_tokens_of_the_rank_with_the_least() -> None:
    """The row that is 1.1 % off: the tokens printed must fit into the memory printed."""
    row = ROWS["vllm-21348-qwen3-235b"]
    cost = rank_cost(MODELS[row.id], tp=row.settings["tp"])
    used = cost.bytes_per_token * row.printed["tokens"] / GIB
    assert used < row.printed["available_GiB"] < used * 1.02


SGLANG = {
    "sgl-qwen3-235b": ("bf16", 4),
    "sgl-glm47-flash": ("bf16", 2),
    "sgl-dsv3-fp8": ("fp8", 1),
    "sgl-nemotron3-nano-tp4": ("fp8", 4),
    "sgl-qwen35-9b-dflash": ("bf16", 1),
}


@pytest.mark.parametrize("row", SGLANG)
def test_sglang_keys_and_values_of_all_tokens(row: str) -> None:
    """What SGLang calls GB is GiB. A latent is all keys; heads are copied when ranks outnumber."""
    dtype, tp = SGLANG[row]
    printed = ROWS[row].printed
    cost = rank_cost(MODELS[row], kv_dtypes(dtype), tp=tp)
    size = cost.bytes_per_token * printed["tokens"] / GIB
    values = printed.get("V_GB", printed["K_GB"])
    assert_prints(printed["K_GB"], size if values is None else size / 2)


def test_sglang_states_of_all_slots() -> None:
    row = ROWS["sgl-nemotron3-nano-tp4"]
    slots = row.settings["max_mamba_cache_size"] + 1  # one is for padding
    for kind, name in (("convolution", "conv_GB"), ("recurrent", "ssm_GB")):
        size = fixed_bytes(MODELS[row.id], kind, tp=row.settings["tp"])
        assert_prints(row.printed[name], size * slots / GIB)
    row = ROWS["sgl-qwen35-9b-dflash"]
    slots = row.settings["max_mamba_cache_size"] + 1
    assert_prints(row.printed["ssm_GB"], fixed_bytes(MODELS[row.id], "recurrent") * slots / GIB)


def test_sglang_keys_of_a_draft_with_the_same_heads() -> None:
    row = ROWS["sgl-qwen35-9b-dflash"]
    shape = MODELS[row.id]
    both = with_mtp(shape, row.keys["draft_layers"])
    draft = cache_cost(both).bytes_per_token - cache_cost(shape).bytes_per_token
    assert_prints(row.printed["draft_K_GB"], draft / 2 * row.printed["tokens"] / GIB)


@pytest.mark.parametrize("row", ["trt-qwen25-0.5b", "trt-r1-distill-8b"])
def test_tensorrt_llm_memory_of_all_tokens(row: str) -> None:
    cost = cache_cost(MODELS[row], kv_dtypes("f16"))
    assert cost.bytes_per_token == ROWS[row].keys["bytes_per_token"]
    printed = ROWS[row].printed
    assert_prints(printed["allocated_GiB"], cost.bytes_per_token * printed["tokens"] / GIB)


@pytest.mark.parametrize("row", ["ref-santacoder-mqa", "ref-gpt2-mha"])
def test_reference_arithmetic(row: str) -> None:
    cost = cache_cost(MODELS[row], kv_dtypes("f16"))
    assert cost.bytes_at(ROWS[row].settings["ctx"]) == ROWS[row].printed["bytes"]


def test_every_row_is_tested_or_named_with_its_reason() -> None:
    tested = {
        *LLAMA_CPP,
        *VLLM,
        *SGLANG,
        *(row for row in ROWS if row.startswith(("whisper-", "trt-", "ref-"))),
        *("llama-laguna-1m-q4", "llama-gemma4-12b-4slots", "llama-gemma4-12b-32k"),
        "llama-gemma3-270m-3slots",
    }
    assert len(ROWS) == 56
    assert tested | NOT_DETERMINED.keys() == ROWS.keys()
