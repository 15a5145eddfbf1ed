"""What holds for every tier, and the limits of those in memory and on disk."""

import logging
import multiprocessing
import os
import random
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvikk.cache.tiers.disk import DiskTier
from kvikk.cache.tiers.host import HostTier
from kvikk.cache.tiers.redis import RedisTier
from kvikk.cache.tiers.stored_block import HEADER_BYTES
from kvikk.cache.tiers.tier import Tier
from kvikk.errors import ModelError
from tests.cache.tiers.blocks import BLOCK_BYTES, block_format, chain, content, contents
from tests.cache.tiers.redis_server import redis_server

STORED_BYTES = BLOCK_BYTES + HEADER_BYTES


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture(params=["host", "disk", "redis"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tier]:
    if request.param == "host":
        made: Tier = HostTier(1 << 20, block_format(), 1)
    elif request.param == "disk":
        made = DiskTier(tmp_path, 1 << 20, block_format())
    else:
        made = RedisTier(request.getfixturevalue("redis_url"), block_format())
    yield made
    made.evict()
    made.close()


def test_what_was_put_is_there_and_nothing_else(tier: Tier) -> None:
    keys = chain(40)
    assert tier.put(keys[:30], contents(keys[:30])) == 30
    assert tier.contains(keys) == [True] * 30 + [False] * 10
    assert tier.get(keys) == [*contents(keys[:30]), *[None] * 10]
    assert tier.put(keys[25:], contents(keys[25:])) == 10, "what is there is not put again"
    assert tier.usage().stored == tier.usage().used_blocks == 40
    assert tier.usage().loaded == 30


def test_groups_of_one_key_are_kept_apart(tier: Tier) -> None:
    key = chain(1)[0]
    names = [key, key[:-1] + b"\1"]
    tier.put(names, contents(names))
    assert tier.get(names) == contents(names)
    assert len(set(contents(names))) == 2


def test_some_or_all_can_be_forgotten(tier: Tier) -> None:
    keys = chain(9)
    tier.put(keys, contents(keys))
    assert tier.evict(keys[3:5])
    assert tier.contains(keys) == [True] * 3 + [False] * 2 + [True] * 4
    assert tier.evict()
    assert tier.get(keys) == [None] * 9


@pytest.mark.parametrize("kind", ["host", "disk"])
def test_a_limit_holds_and_a_chain_goes_from_its_end(kind: str, tmp_path: Path) -> None:
    limit = 10 * STORED_BYTES
    tier = (
        HostTier(limit, block_format(), 1)
        if kind == "host"
        else DiskTier(tmp_path, limit, block_format())
    )
    old, used = chain(4), chain(4, 100)
    tier.put(old, contents(old))
    tier.put(used, contents(used))
    tier.get(old)  # used once more, and so later than the others
    newer = chain(5, 200)
    tier.put(newer, contents(newer))
    assert tier.contains(old) == [True] * 4
    assert tier.contains(used) == [True, False, False, False]
    assert tier.usage().used_bytes <= limit
    assert tier.usage().evicted == 3
    newest = chain(2, 300)
    tier.put(newest, contents(newest))
    assert tier.contains(old) == [True, True, True, False]


def test_a_block_larger_than_the_limit_is_not_kept_and_evicts_nobody() -> None:
    tier = HostTier(STORED_BYTES - 1, block_format(), 1)
    keys = chain(1)
    assert tier.put(keys, contents(keys)) == 0
    small = keys[0][:-1] + b"\1"
    assert tier.put([small], [content(small)]) == 1
    assert tier.put(keys, contents(keys)) == 0
    assert tier.contains([small]) == [True]


def test_a_folder_serves_the_next_engine_with_the_oldest_first_to_go(tmp_path: Path) -> None:
    first = DiskTier(tmp_path, 20 * STORED_BYTES, block_format())
    old, young = chain(5), chain(5, 100)
    first.put(old, contents(old))
    first.put(young, contents(young))
    for key in old:  # a file system's clock may be coarser than this test is long
        os.utime(first._path(key), (1, 1))
    first.close()
    with_less = DiskTier(tmp_path, 7 * STORED_BYTES, block_format())
    assert with_less.contains(young) == [True] * 5
    assert sum(with_less.contains(old)) == 2
    assert with_less.get(young) == contents(young)
    with_less.close()


def test_two_engines_cannot_use_one_folder(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 1 << 20, block_format())
    with pytest.raises(ModelError, match="another engine uses"):
        DiskTier(tmp_path, 1 << 20, block_format())
    tier.close()
    DiskTier(tmp_path, 1 << 20, block_format()).close()


def test_a_folder_that_takes_no_blocks_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", Path("/proc/self/blocks")):  # nobody writes there
        with pytest.raises(ModelError, match="cannot keep blocks in"):
            DiskTier(folder, 1 << 20, block_format())


def test_what_no_engine_has_written_is_neither_counted_nor_touched(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "tier", tmp_path / "elsewhere"
    first = DiskTier(folder, 1 << 20, block_format())
    keys = chain(3)
    first.put(keys, contents(keys))
    used_bytes = first.usage().used_bytes
    first.close()
    path = first._path(keys[0])
    elsewhere.mkdir()
    (elsewhere / f"{path.name}.part").write_text("kept by a link")
    (folder / "zz").symlink_to(elsewhere)
    (folder / "ab").mkdir(exist_ok=True)
    names = ["film.part", path.name, f"{path.name}.part", path.name.upper(), f"{path.name[:-1]}00"]
    for name in names:
        (folder / "ab" / name).write_text("somebody's")
    (path.parent / f"{path.name[:-1]}+0").write_text("somebody's")
    first._path(chain(1, 500)[0]).mkdir(parents=True)
    second = DiskTier(folder, 1 << 20, block_format())
    assert second.usage().used_blocks == 3
    assert second.usage().used_bytes == used_bytes
    assert second.get(keys) == contents(keys)
    assert second.evict()
    second.close()
    assert sorted(one.name for one in (folder / "ab").iterdir()) == sorted(set(names))
    assert list(elsewhere.iterdir())


def test_what_cannot_be_read_for_a_while_is_a_miss_and_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier = DiskTier(tmp_path, 1 << 20, block_format())
    keys = chain(4)
    tier.put(keys, contents(keys))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    unused = os.open("/dev/null", os.O_RDONLY)
    os.close(unused)
    with caplog.at_level(logging.WARNING):
        resource.setrlimit(resource.RLIMIT_NOFILE, (unused, before[1]))  # no more open files
        try:
            got = tier.get(keys)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert got == [None] * 4
    assert len(caplog.records) == 1
    assert "reading from the disk tier" in caplog.text
    assert tier.usage().used_blocks == 4
    deadline = time.monotonic() + 60
    while tier.get(keys) != contents(keys):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    tier.close()


def damaged(stored: bytes, how: str) -> bytes:
    return {
        "corrupted": stored[:-9] + bytes([stored[-9] ^ 1]) + stored[-8:],
        "truncated": stored[: len(stored) // 2],
        "empty": b"",
        "of another model": block_format(model=b"another").pack(chain(4)[2], content(chain(4)[2])),
    }[how]


@pytest.mark.parametrize("how", ["corrupted", "truncated", "empty", "of another model"])
def test_an_unfit_file_is_a_miss_a_log_line_and_gone(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier = DiskTier(tmp_path, 1 << 20, block_format())
    keys = chain(4)
    tier.put(keys, contents(keys))
    path = tier._path(keys[2])
    path.write_bytes(damaged(path.read_bytes(), how))
    with caplog.at_level(logging.WARNING):
        got = tier.get(keys)
    assert got == [*contents(keys[:2]), None, content(keys[3])]
    assert len(caplog.records) == 1
    assert keys[2].hex()[:16] in caplog.text
    assert not path.exists()
    assert tier.usage().unfit == 1
    assert tier.put([keys[2]], [content(keys[2])]) == 1
    assert tier.get(keys) == contents(keys)
    tier.close()


def test_a_disk_that_takes_no_more_is_said_once_and_what_is_there_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier = DiskTier(tmp_path, 1 << 20, block_format())
    keys = chain(6)
    tier.put(keys[:2], contents(keys[:2]))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BLOCK_BYTES // 2, before[1]))
    try:
        with caplog.at_level(logging.WARNING):
            for key in keys[2:]:
                assert tier.put([key], [content(key)]) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(caplog.records) == 1
    assert "writing to the disk tier" in caplog.text
    assert tier.usage().trouble is not None
    assert tier.get(keys) == [*contents(keys[:2]), *[None] * 4]
    assert not list(tmp_path.glob("*/*.part")), "space is given back"
    deadline = time.monotonic() + 60
    while not tier.put(keys[2:], contents(keys[2:])):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert tier.usage().trouble is None
    tier.close()


def write_until_killed(folder: Path, seed: int, limit_bytes: int) -> None:
    tier = DiskTier(folder, limit_bytes, block_format())
    chance = random.Random(seed)
    while True:
        keys = chain(3, chance.randrange(200))
        tier.put(keys, contents(keys))
        tier.get(keys)


def test_an_engine_killed_at_any_moment_leaves_whole_blocks_and_no_waste(tmp_path: Path) -> None:
    limit = 40 * STORED_BYTES
    fork = multiprocessing.get_context("fork")
    chance = random.Random(0)
    kills = parts = 0
    while kills < 25 or not parts:  # one at least in the middle of a write
        assert kills < 1000
        process = fork.Process(target=write_until_killed, args=(tmp_path, kills, limit))
        process.start()
        kills += 1
        began = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")}
        while {path: _mtime_ns(path) for path in tmp_path.glob("*/*")} == began:
            assert process.is_alive()
        time.sleep(0.01 * chance.random())
        process.kill()
        process.join()
        parts += len(list(tmp_path.glob("*/*.part")))
        tier = DiskTier(tmp_path, limit, block_format())
        assert not list(tmp_path.glob("*/*.part"))
        files = [path for path in tmp_path.glob("*/*") if path.is_file()]
        assert tier.usage().used_bytes == sum(path.stat().st_size for path in files) <= limit
        keys = [key for start in range(200) for key in chain(3, start)]
        for key, block in zip(keys, tier.get(keys), strict=True):
            assert block is None or block == content(key)
        assert tier.usage().unfit == 0
        tier.close()


def _mtime_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
