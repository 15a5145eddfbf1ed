"""Real engines over tiers that break: whatever becomes of one, answers stay, and the log says so.

SmolLM2's tokeniser over two small layers, so that a prompt takes milliseconds.
"""

import logging
import multiprocessing
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvikk import LLM
from kvikk.cache.ledger.records import Cause
from kvikk.engine.tiering import PrefillSpeed
from tests.cache.tiers.redis_server import RedisServer, redis_server
from tests.engine import driver, tiered
from tests.engine.exact_backend import answer

HARBOUR = "The harbour lies still at dawn, and boats come home with the night's catch. " * 12
BLOCKS = len(HARBOUR.split()) // 32  # at least


def make(model: Path, **tiers: object) -> LLM:
    return LLM(
        str(model),
        backend="reference",
        kv_memory_bytes=8 << 20,
        max_context_tokens=1024,
        **tiers,
    )


@pytest.fixture(autouse=True)
def _load_whatever_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not known how fast prompts are computed, no tier is too slow."""
    monkeypatch.setattr(PrefillSpeed, "observe", lambda *_: None)


def ask(llm: LLM) -> tuple[tuple[int, ...], list[Cause]]:
    """An answer from what tiers have, since the pool has forgotten; what became of its prompt."""
    engine = llm.loaded.engine
    assert engine.tiering is None or engine.tiering.drain(120)
    engine.cache.reset()
    completion = llm.generate(HARBOUR, max_tokens=6, ignore_eos=True, frequency_penalty=2.0)[0]
    (account,) = engine.books.accounts.latest(1)
    return completion.token_ids, [span.cause for span in account.ledger.spans]


def wait_for(condition, llm: LLM) -> None:
    """Ask until it is so: a tier that failed rests for a while."""
    deadline = time.monotonic() + 60
    while not condition(ask(llm)[1]):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(scope="module")
def expected(tiny_model: Path) -> tuple[int, ...]:
    tokens, causes = ask(make(tiny_model))
    assert Cause.HIT_REMOTE not in causes
    assert len(set(tokens)) > 1
    return tokens


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path, "--maxmemory", "100mb", "--maxmemory-policy", "noeviction") as one:
        yield one


@pytest.fixture
def shared(redis: RedisServer, tiny_model: Path, expected: tuple[int, ...]) -> Iterator[LLM]:
    """An engine whose prompts are in Redis."""
    llm = make(tiny_model, redis_tier=redis.url)
    ask(llm)
    assert ask(llm) == (expected, [Cause.HIT_REMOTE, Cause.TAIL])
    yield llm
    llm.loaded.engine.close()


def is_remote(causes: list[Cause]) -> bool:
    return Cause.HIT_REMOTE in causes


def test_a_flushed_redis_is_a_miss_and_fills_again(
    redis: RedisServer, shared: LLM, expected: tuple[int, ...]
) -> None:
    redis.client.flushall()
    tokens, causes = ask(shared)
    assert tokens == expected
    assert not is_remote(causes)
    assert ask(shared) == (expected, [Cause.HIT_REMOTE, Cause.TAIL])


def test_a_redis_that_says_nothing_is_a_miss_and_a_line_and_comes_back(
    redis: RedisServer,
    shared: LLM,
    expected: tuple[int, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert shared.loaded.engine.tiering.drain(120)
    (speed,) = shared.loaded.engine.tiering._lower.speeds
    before = speed.latency_s.latest, speed.bytes_per_s.latest
    redis.pause()
    try:
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                tokens, causes = ask(shared)
                assert tokens == expected
                assert not is_remote(causes)
        # How long nothing was said is no measurement: it would keep short prompts away for long.
        assert (speed.latency_s.latest, speed.bytes_per_s.latest) == before
    finally:
        redis.resume()
    lines = [line for line in caplog.messages if "fails; going on without" in line]
    assert lines
    assert all("Redis tier" in line for line in lines)
    assert len(lines) <= 2, "reading and writing, once each"
    wait_for(is_remote, shared)


def test_a_full_redis_serves_what_it_has_and_takes_no_more(
    redis: RedisServer,
    shared: LLM,
    tiny_model: Path,
    expected: tuple[int, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    redis.client.config_set("maxmemory", 1)
    assert ask(shared) == (expected, [Cause.HIT_REMOTE, Cause.TAIL])
    before = redis.client.dbsize()
    with caplog.at_level(logging.WARNING):
        shared.generate("Something else: " + HARBOUR, max_tokens=2)
        assert shared.loaded.engine.tiering.drain(120)
    assert redis.client.dbsize() == before
    assert [line for line in caplog.messages if "writing to the Redis tier" in line]
    (usage,) = shared.loaded.engine.stats().tiering.tiers
    assert "OutOfMemory" in (usage.trouble or "")
    assert ask(shared)[0] == expected


def test_a_killed_redis_is_a_miss_and_a_line(
    redis: RedisServer,
    shared: LLM,
    expected: tuple[int, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    redis.kill()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            tokens, causes = ask(shared)
            assert tokens == expected
            assert not is_remote(causes)
    assert [line for line in caplog.messages if "fails; going on without" in line]


def test_damaged_values_in_redis_are_misses_and_a_line(
    redis: RedisServer,
    shared: LLM,
    expected: tuple[int, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = sorted(redis.client.scan_iter())
    assert len(names) > BLOCKS / 2
    for place, name in enumerate(names):
        value = redis.client.get(name)
        assert value is not None
        damaged = [value[:-1] + bytes([value[-1] ^ 1]), value[:50], b"", value[::-1]][place % 4]
        redis.client.set(name, damaged)
    with caplog.at_level(logging.WARNING):
        tokens, causes = ask(shared)
    assert tokens == expected
    assert not is_remote(causes)
    assert [line for line in caplog.messages if "blocks are not used" in line]
    wait_for(is_remote, shared)


@pytest.mark.parametrize("how", ["corrupted", "truncated", "empty", "of another model"])
def test_damaged_files_are_misses_and_a_line_and_the_next_start_is_warm(
    how: str,
    tiny_model: Path,
    tmp_path: Path,
    expected: tuple[int, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    llm = make(tiny_model, disk_tier=tmp_path)
    assert ask(llm)[0] == expected
    llm.loaded.engine.close()
    files = [path for path in tmp_path.glob("*/*") if path.is_file()]
    assert len(files) >= BLOCKS / 2
    for path in files:
        data = path.read_bytes()
        path.write_bytes(
            {
                "corrupted": data[:200] + bytes([data[200] ^ 4]) + data[201:],
                "truncated": data[: len(data) // 2],
                "empty": b"",
                # Behind magic, version and encoding stands whose it is.
                "of another model": data[:8] + bytes(32) + data[40:],
            }[how]
        )
    with caplog.at_level(logging.WARNING):
        llm = make(tiny_model, disk_tier=tmp_path)
        tokens, causes = ask(llm)
    assert tokens == expected
    assert Cause.HIT_DISK not in causes
    assert [line for line in caplog.messages if "blocks are not used" in line]
    assert ask(llm) == (expected, [Cause.HIT_DISK, Cause.TAIL])
    llm.loaded.engine.close()
    llm = make(tiny_model, disk_tier=tmp_path)
    assert ask(llm) == (expected, [Cause.HIT_DISK, Cause.TAIL])
    llm.loaded.engine.close()


STORIES = [[1 + story, *range(1, 40)] for story in range(8)]


def serve_until_killed(folder: Path, seed: int, limit_bytes: int) -> None:
    engine = tiered.make_engine([tiered.disk(folder, limit_bytes)], num_blocks=(24,))
    chance = random.Random(seed)
    number = 0
    while True:
        prompt = chance.choice(STORIES)[: chance.randrange(8, 40)]
        driver.run(engine, [driver.request(f"r{number}", prompt, 3)])
        number += 1


def test_an_engine_killed_while_it_writes_leaves_no_wrong_token_and_no_waste(
    tmp_path: Path,
) -> None:
    limit = 30 * (tiered.block_format().stored_bytes(b"\0"))
    fork = multiprocessing.get_context("fork")
    chance = random.Random(0)
    reused = 0
    for seed in range(20):
        process = fork.Process(target=serve_until_killed, args=(tmp_path, seed, limit))
        process.start()
        before = {path.name for path in tmp_path.glob("*/*")}
        while {path.name for path in tmp_path.glob("*/*")} == before:
            assert process.is_alive()
        time.sleep(0.01 * chance.random())
        process.kill()
        process.join()
        tier = tiered.disk(tmp_path, limit)
        files = [path for path in tmp_path.glob("*/*") if path.is_file()]
        assert not [path for path in files if path.suffix == ".part"]
        assert sum(path.stat().st_size for path in files) == tier.usage().used_bytes <= limit
        engine = tiered.make_engine([tier], num_blocks=(24,))
        for number, prompt in enumerate(STORIES):
            request = driver.request(f"r{number}", prompt, 3)
            got = driver.run(engine, [request])[request.id]
            want, _ = answer(prompt, request.generation, (None,), 64)
            assert got.token_ids == want
            reused += got.last.usage.cached_tokens
        assert tier.usage().unfit == 0
        engine.close()
    assert reused > 0
