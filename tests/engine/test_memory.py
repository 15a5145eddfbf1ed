"""How memory is divided, and what is said where there is too little."""

from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest

from kvikk.backends.base import Plan
from kvikk.cache.manager import CacheManager
from kvikk.cache.records import GroupSpec
from kvikk.engine.host_memory import available_bytes
from kvikk.engine.memory import DEFAULT_SHARE, MemoryReport, blocks_per_sequence, plan_memory
from kvikk.errors import ModelError
from tests.engine.exact_backend import ExactBackend, groups

MIB = 2**20
BLOCK = 32
BLOCK_BYTES = 8 * BLOCK  # what the exact backend keeps a block


def draft(*windows: int | None, context: int = 8192, step_tokens: int = 256) -> Plan:
    return Plan(groups(*windows), (), BLOCK, "f32", step_tokens, 64, context)


def planned(
    shape: Plan,
    *,
    kv: int | None = None,
    available: int | None = 1000 * MIB,
    max_running: int = 64,
) -> tuple[Plan, MemoryReport]:
    return plan_memory(
        ExactBackend(),
        None,  # type: ignore[arg-type]  # the exact backend has no weights
        shape,
        kv_memory_bytes=kv,
        available_bytes=available,
        max_running=max_running,
    )


def test_a_full_group_gets_all_that_was_asked_for() -> None:
    plan, report = planned(draft(None), kv=10 * MIB)
    assert plan.num_blocks == (10 * MIB // BLOCK_BYTES,)
    assert report.kv_bytes == 10 * MIB
    assert report.groups[0].num_tokens == plan.num_blocks[0] * BLOCK
    assert report.conversations == pytest.approx(plan.num_blocks[0] / (8192 / BLOCK))


def test_the_default_is_the_stated_share_of_what_is_free() -> None:
    _, report = planned(draft(None), available=3 * MIB)
    assert 0 <= 3 * MIB * DEFAULT_SHARE - report.kv_bytes < BLOCK_BYTES


def test_the_default_is_no_more_than_could_ever_be_used() -> None:
    plan, report = planned(draft(None), available=1000 * MIB, max_running=3)
    assert plan.num_blocks == (3 * 8192 // BLOCK,)
    assert report.conversations == 3


@pytest.mark.parametrize("kv_mib", [1, 3, 10, 100])
def test_groups_with_a_window_fill_up_together_with_full_ones(kv_mib: int) -> None:
    plan, report = planned(draft(None, 512), kv=kv_mib * MIB)
    full, window = plan.num_blocks
    per_window = ceil((511 + 256) / BLOCK) + 1
    assert full / (4096 / BLOCK) == pytest.approx(window / per_window, rel=0.05)
    assert kv_mib * MIB - 2 * BLOCK_BYTES < report.kv_bytes <= kv_mib * MIB


@pytest.mark.parametrize("windows", [(None,), (512,), (None, 512), (100, None, 30)])
@pytest.mark.parametrize("kv_kib", [30, 64, 200, 4000])
def test_one_conversation_of_the_promised_length_always_fits(
    windows: tuple[int | None, ...], kv_kib: int
) -> None:
    try:
        plan, report = planned(draft(*windows), kv=kv_kib * 1024)
    except ModelError:
        assert kv_kib == 30  # one conversation of 512 tokens needs 16 blocks a group
        assert len(windows) > 1 or windows == (512,)
        return
    cache = CacheManager(
        [
            GroupSpec(count, group.window_tokens)
            for count, group in zip(plan.num_blocks, plan.groups, strict=True)
        ],
        BLOCK,
    )
    assert cache.can_ever_fit(report.max_context_tokens, plan.max_batch_tokens)
    assert report.max_context_tokens == 8192 or not cache.can_ever_fit(
        report.max_context_tokens + BLOCK, plan.max_batch_tokens
    )
    assert report.kv_bytes <= kv_kib * 1024
    assert report.wanted_context_tokens == 8192


@pytest.mark.parametrize("num_tokens", [33, 500, 767, 768, 5000])
def test_the_blocks_of_a_sequence_are_those_that_the_cache_asks_for(num_tokens: int) -> None:
    shape = draft(None, 512, 7)
    needed = blocks_per_sequence(shape, num_tokens)
    specs = [
        GroupSpec(count, group.window_tokens)
        for count, group in zip(needed, shape.groups, strict=True)
    ]
    assert CacheManager(specs, BLOCK).can_ever_fit(num_tokens, shape.max_batch_tokens)
    for group, spec in enumerate(specs):
        fewer = [*specs]
        fewer[group] = replace(spec, num_blocks=spec.num_blocks - 1)
        assert not CacheManager(fewer, BLOCK).can_ever_fit(num_tokens, shape.max_batch_tokens)


def test_too_little_for_one_short_conversation_is_one_clear_line() -> None:
    with pytest.raises(ModelError, match=r"2\.00 KiB .* too little.* 512 tokens .*--kv-memory"):
        planned(draft(None), kv=2048)


def test_more_than_is_free_is_refused_and_not_left_to_the_kernel() -> None:
    with pytest.raises(ModelError, match=r"80\.0 GiB .*10\.0 MiB.*--kv-memory"):
        planned(draft(None), kv=80 * 2**30, available=10 * MIB)


def test_an_unknown_amount_of_free_memory_has_to_be_chosen_for() -> None:
    with pytest.raises(ModelError, match="--kv-memory"):
        planned(draft(None), available=None)
    plan, _ = planned(draft(None), available=None, kv=MIB)
    assert plan.num_blocks == (MIB // BLOCK_BYTES,)


def test_free_memory_is_the_least_of_the_machines_and_every_control_groups(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 64000000 kB\nMemAvailable:   50000 kB\n")
    own = tmp_path / "cgroup"
    own.write_text("0::/slice/container\n")
    root = tmp_path / "fs"
    inner = root / "slice" / "container"
    inner.mkdir(parents=True)
    assert available_bytes(meminfo, own, root) == 50_000 * 1024

    (inner / "memory.max").write_text("max\n")
    (inner / "memory.current").write_text("7000000\n")
    assert available_bytes(meminfo, own, root) == 50_000 * 1024

    (root / "slice" / "memory.max").write_text("10000000\n")
    (root / "slice" / "memory.current").write_text("9000000\n")
    assert available_bytes(meminfo, own, root) == 1_000_000

    (root / "slice" / "memory.stat").write_text("anon 5\ninactive_file 2500000\n")
    assert available_bytes(meminfo, own, root) == 3_500_000


def test_control_groups_of_the_first_version_count_too(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemAvailable:   50000 kB\n")
    own = tmp_path / "cgroup"
    own.write_text("5:devices:/\n4:cpu,memory:/job\n")
    folder = tmp_path / "fs" / "memory" / "job"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("8000000\n")
    (folder / "memory.usage_in_bytes").write_text("3000000\n")
    assert available_bytes(meminfo, own, tmp_path / "fs") == 5_000_000


def test_this_machine_says_how_much_is_free() -> None:
    free = available_bytes()
    assert free is not None
    assert 0 < free < 2**50
