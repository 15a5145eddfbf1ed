"""What engines reserve: the rules against engines' own figures, and ours against the engine."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvikk.backends.base import Plan
from kvikk.engine.memory import blocks_per_sequence
from kvikk.errors import ModelError
from kvikk.files.sources import resolve
from kvikk.shapes.cost import cache_cost
from kvikk.shapes.dtypes import kv_dtypes
from kvikk.shapes.families import read_shape
from kvikk.shapes.reserve import kvikk, llama_cpp, sglang, transformers, vllm
from kvikk.shapes.reserve.engines import ENGINES, EngineOptions, reserve
from kvikk.shapes.reserve.records import layers_of
from kvikk.shapes.shape import LayerCache, LayerKind, ModelShape, cache_groups
from tests.shapes.configurations import DATA, published, published_names

MIB = 2**20
VLLM_BYTES: dict[str, dict[str, int]] = json.loads((DATA / "vllm_request_bytes.json").read_text())


def windowed(full: int, sliding: int, elements: int, window: int) -> ModelShape:
    """So many full and sliding layers of ``elements`` keys and as many values."""
    kinds = [LayerKind.FULL] * full + [LayerKind.SLIDING] * sliding
    return ModelShape(
        "made",
        tuple(
            LayerCache(kind, elements, elements, window if kind is LayerKind.SLIDING else None)
            for kind in kinds
        ),
        131_072,
    )


@pytest.mark.parametrize("name", published_names())
@pytest.mark.parametrize("engine", ["kvikk", "vllm", "llamacpp"])
def test_an_engine_reserves_at_least_what_is_held(name: str, engine: str) -> None:
    shape = read_shape(published(name))
    if engine == "vllm" and shape.model_type == "deepseek_v4":
        return  # its pages of compressed entries are laid out in a way of their own
    for context in (100, 5000):
        held = cache_cost(shape).bytes_at(context)
        assert reserve(engine, shape, None, context, EngineOptions()).total_bytes >= held


@pytest.mark.parametrize("name", VLLM_BYTES)
def test_vllms_own_functions_come_to_the_same_bytes(name: str) -> None:
    """vLLM 0.32: ``get_kv_cache_groups`` and ``_max_memory_usage_bytes_from_groups``.

    They were given a spec a layer, attention blocks already grown to hold a state, and steps of
    8,192 tokens.
    """
    layers = layers_of(read_shape(published(name)))
    for context, theirs in VLLM_BYTES[name].items():
        ours = vllm.reserve(layers, int(context), vllm.VllmSettings())
        assert ours.total_bytes == theirs


def test_vllm_makes_the_pages_of_gemma_4_equal() -> None:
    """E2B in vLLM 0.25: 106,443 tokens and 3.25 requests of 32,768 in what is 0.93 GiB."""
    layers = (LayerCache(LayerKind.FULL, 512, 512),) * 3 + (
        LayerCache(LayerKind.SLIDING, 256, 256, 512),
    ) * 12
    plan = vllm.layout(layers_of(ModelShape("e2b", layers, 32_768)), vllm.VllmSettings())
    assert plan is not None
    assert [group.block_size for group in plan.groups] == [16, 32, 32, 32, 32]
    blocks = 10_200
    assert f"{blocks * plan.block_bytes / 2**30:.2f}" == "0.93"
    assert int(plan.concurrency(blocks, 32_768) * 32_768) == 106_443
    assert f"{plan.concurrency(blocks, 32_768):.2f}" == "3.25"


def test_vllm_takes_the_larger_count_where_kinds_are_nearly_equal() -> None:
    """gpt-oss with an EAGLE layer, as vLLM's source tells it: 13 full and 12 sliding make 13s."""
    plan = vllm.layout(layers_of(windowed(13, 12, 512, 128)), vllm.VllmSettings())
    assert plan is not None
    assert len(plan.groups) == 2
    assert plan.block_bytes == 13 * 16 * 2 * 512 * 2


@given(st.integers(1, 300_000), st.integers(1, 20), st.integers(1, 20))
def test_vllm_never_promises_a_longer_request_than_fits(
    context: int, full: int, sliding: int
) -> None:
    plan = vllm.layout(layers_of(windowed(full, sliding, 64, 1000)), vllm.VllmSettings())
    assert plan is not None
    longest = plan.longest_context(plan.request_bytes(context), 400_000)
    assert longest >= context
    assert plan.request_bytes(longest) == plan.request_bytes(context)
    assert plan.request_bytes(longest + 1) > plan.request_bytes(context) or longest == 400_000


@pytest.mark.parametrize(
    ("context", "slots", "batch", "unified", "full", "window"),
    [
        (4096, 1, 512, False, 4096, 1024),  # llama-cpp-python 0.3.36, Gemma 3 270M
        (3000, 1, 128, False, 3072, 768),  # the same
        (1024, 3, 512, False, 512, 512),  # ctx 1024 in 3 slots: 1,536 cells in all
        (8192, 4, 2048, True, 8192, 4096),  # unified: 4 windows of 512 and a step of 2,048
    ],
)
def test_llama_cpp_pads_each_slots_cells(
    context: int, slots: int, batch: int, unified: bool, full: int, window: int
) -> None:
    settings = llama_cpp.LlamaCppSettings(slots, unified, batch)
    assert llama_cpp.full_cells(context, settings).cells == full
    assert llama_cpp.window_cells(context, 512, settings).cells == window


def test_llama_cpp_takes_27_mib_for_gemma_3_in_three_slots() -> None:
    shape = read_shape(resolve("gemma3-270m").config)
    reserved = reserve("llamacpp", shape, kv_dtypes("f16"), 1024, EngineOptions(slots=3))
    assert reserved.total_bytes == 27 * MIB


def test_llama_cpp_keeps_states_in_float32() -> None:
    """Qwen3.5-9B: 2.25 MiB of convolutions and 48 of states for a sequence."""
    shape = read_shape(published("qwen3_5-Qwen3.5-9B"))
    reserved = reserve("llamacpp", shape, kv_dtypes("q8_0"), 262_144, EngineOptions())
    assert reserved.total_bytes == (4352 + 50.25) * MIB


@pytest.mark.parametrize("windows", [(None,), (512,), (None, 512), (None, 100, 30)])
@pytest.mark.parametrize("context", [1, 33, 700, 5000])
def test_ours_are_the_blocks_that_the_engine_plans(
    windows: tuple[int | None, ...], context: int
) -> None:
    shape = ModelShape(
        "made",
        tuple(
            LayerCache(LayerKind.SLIDING if window else LayerKind.FULL, 64, 64, window)
            for window in windows
        ),
        8192,
    )
    plan = Plan(cache_groups(shape), (), 32, "bf16", 256, 64, 8192)
    planned = sum(
        blocks * group.elements_per_token * 2 * 32
        for blocks, group in zip(blocks_per_sequence(plan, context), plan.groups, strict=True)
    )
    settings = kvikk.KvikkSettings()
    assert kvikk.reserve(layers_of(shape), context, settings).total_bytes == planned


def test_sglangs_window_pool_is_a_share_and_not_the_window() -> None:
    layers = layers_of(windowed(2, 3, 64, 128))
    reserved = sglang.reserve(layers, 10_000, sglang.SglangSettings())
    assert reserved.total_bytes == (2 * 10_000 + 3 * 8_000) * 256


def test_transformers_keeps_one_token_less_than_a_window_unless_static() -> None:
    layers = layers_of(windowed(0, 1, 64, 128))
    for static, tokens in ((False, 127), (True, 128)):
        settings = transformers.TransformersSettings(static)
        assert transformers.reserve(layers, 1000, settings).total_bytes == tokens * 256


def test_every_engine_is_known_and_no_other() -> None:
    shape = windowed(1, 1, 64, 128)
    for engine in ENGINES:
        reserved = reserve(engine, shape, None, 1000, EngineOptions())
        assert reserved.engine == engine
        assert json.dumps(reserved.rules)
    with pytest.raises(ModelError, match="no engine 'other'"):
        reserve("other", shape, None, 1000, EngineOptions())
