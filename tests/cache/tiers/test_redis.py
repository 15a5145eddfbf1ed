"""A real Redis, and all that can become of one."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvikk.cache.tiers.health import Health
from kvikk.cache.tiers.redis import PIECE_BYTES, RedisTier
from kvikk.errors import ModelError
from tests.cache.tiers.blocks import block_format, chain, content, contents
from tests.cache.tiers.redis_server import RedisServer, redis_server

KEYS = chain(6)
NOTHING = [None] * 6


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path, "--maxmemory", "200mb", "--maxmemory-policy", "noeviction") as one:
        yield one


def make_tier(url: str, **options: float) -> RedisTier:
    return RedisTier(url, block_format(), **{"answer_timeout_s": 20.0, **options})


def until_it_works(tier: RedisTier) -> None:
    deadline = time.monotonic() + 60
    while not tier.put(KEYS, contents(KEYS)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_one_engine_puts_another_one_finds(server: RedisServer) -> None:
    first, second = make_tier(server.url), make_tier(server.url)
    first.put(KEYS[:4], contents(KEYS[:4]))
    assert second.contains(KEYS) == [True] * 4 + [False] * 2
    assert second.get(KEYS) == [*contents(KEYS[:4]), None, None]
    assert second.put(KEYS, contents(KEYS)) == 2


def test_a_block_of_several_pieces_is_whole_or_a_miss(server: RedisServer) -> None:
    size = 2 * PIECE_BYTES + 1000
    tier = RedisTier(server.url, block_format(size))
    keys = chain(2)
    assert tier.put(keys, contents(keys, size)) == 2
    assert tier.get(keys) == contents(keys, size)
    names = [name for name in server.client.scan_iter() if name.endswith(b":2")]
    assert len(names) == 2
    server.client.delete(*names[:1])
    assert sorted(block is None for block in tier.get(keys)) == [False, True]
    assert sum(tier.contains(keys)) == 1, "what is left of it goes, and it can be put again"
    assert tier.put(keys, contents(keys, size)) == 1
    assert tier.get(keys) == contents(keys, size)


def test_after_a_flush_everything_is_a_miss_and_can_be_put_again(server: RedisServer) -> None:
    tier = make_tier(server.url)
    tier.put(KEYS, contents(KEYS))
    server.client.flushall()
    assert tier.contains(KEYS) == [False] * 6
    assert tier.get(KEYS) == NOTHING
    assert tier.put(KEYS, contents(KEYS)) == 6
    assert tier.usage().trouble is None


def test_a_full_server_keeps_what_it_has_and_is_said_once(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    tier = make_tier(server.url)
    tier.put(KEYS[:3], contents(KEYS[:3]))
    server.client.config_set("maxmemory", 1)
    with caplog.at_level(logging.WARNING):
        assert tier.put(KEYS, contents(KEYS)) == 0
        assert tier.put(KEYS, contents(KEYS)) == 0
    assert len(caplog.records) == 1
    assert "OutOfMemory" in (tier.usage().trouble or "")
    assert tier.get(KEYS) == [*contents(KEYS[:3]), None, None, None]
    server.client.config_set("maxmemory", "200mb")
    until_it_works(tier)
    assert tier.get(KEYS) == contents(KEYS)
    assert tier.usage().trouble is None


def test_a_server_that_does_not_answer_costs_one_timeout_and_comes_back(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    tier = make_tier(server.url, answer_timeout_s=0.5)
    while not tier.put(KEYS, contents(KEYS)):  # were it to take longer than that
        time.sleep(0.05)
    now_s = 0.0
    tier._reading = Health("the Redis tier", lambda: now_s)  # its rest goes by this clock
    failures = tier.usage().failures
    server.pause()
    try:
        with caplog.at_level(logging.WARNING):
            assert tier.get(KEYS) == NOTHING
            calls = [tier.contains(KEYS) for _ in range(1000)]
    finally:
        server.resume()
    assert calls == [[False] * 6] * 1000
    assert len(caplog.records) == 1
    assert tier.usage().failures == failures + 1
    deadline = time.monotonic() + 60
    while tier.get(KEYS) == NOTHING:
        assert time.monotonic() < deadline
        now_s += 60
        time.sleep(0.05)
    assert make_tier(server.url).get(KEYS) == contents(KEYS)


def test_a_dead_server_is_a_tier_with_nothing_in_it(server: RedisServer) -> None:
    tier = make_tier(server.url)
    tier.put(KEYS, contents(KEYS))
    server.kill()
    assert tier.get(KEYS) == NOTHING
    assert tier.contains(KEYS) == [False] * 6
    assert tier.put(KEYS, contents(KEYS)) == 0
    assert not tier.evict()
    assert "ConnectionError" in (tier.usage().trouble or "")


def test_blocks_expire_and_use_makes_their_time_begin_anew(server: RedisServer) -> None:
    tier = make_tier(server.url, expire_s=1000)
    tier.put(KEYS, contents(KEYS))
    names = [tier._name(key) for key in KEYS]
    for name in names:
        server.client.expire(name, 10)
    tier.get(KEYS[:2])
    tier.touch(KEYS[2:4])
    assert [server.client.ttl(name) > 100 for name in names] == [True] * 4 + [False] * 2
    server.client.pexpire(names[0], 1)
    time.sleep(0.01)
    assert tier.get(KEYS[:2]) == [None, content(KEYS[1])]


def test_a_damaged_value_is_a_miss_a_log_line_and_gone(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    tier = make_tier(server.url)
    tier.put(KEYS, contents(KEYS))
    server.client.setrange(tier._name(KEYS[3]), 500, b"damage")
    with caplog.at_level(logging.WARNING):
        assert tier.get(KEYS) == [*contents(KEYS[:3]), None, *contents(KEYS[4:])]
    assert len(caplog.records) == 1
    assert tier.contains(KEYS) == [True] * 3 + [False, True, True]


def test_what_is_no_value_is_a_miss_and_gone_and_no_trouble(server: RedisServer) -> None:
    tier = make_tier(server.url)
    tier.put(KEYS, contents(KEYS))
    server.client.delete(tier._name(KEYS[1]))
    server.client.rpush(tier._name(KEYS[1]), "not", "ours")
    assert tier.get(KEYS) == [content(KEYS[0]), None, *contents(KEYS[2:])]
    assert tier.usage().trouble is None
    assert tier.put(KEYS, contents(KEYS)) == 1


def test_forgetting_all_leaves_other_models_alone(server: RedisServer) -> None:
    tier = make_tier(server.url)
    other = RedisTier(server.url, block_format(model=b"another"))
    for one in (tier, other):
        one.put(KEYS, contents(KEYS))
    assert tier.evict()
    assert tier.get(KEYS) == NOTHING
    assert other.get(KEYS) == contents(KEYS)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://:s3cret@127.0.0.1:9/3", "127.0.0.1:9/3"),
        ("valkey://user:s3cret@host/0", "host/0"),
        ("unix:///run/s.sock", "/run/s.sock"),
    ],
)
def test_a_place_is_told_without_its_secrets(url: str, place: str) -> None:
    tier = make_tier(url)
    assert tier.place == place
    assert "s3cret" not in repr(tier.usage())


URLS_OF_NOTHING = [
    *("http://host", "s3cret", "redis://:s3/cret@host:6379"),
    *("redis://:s3cret@host/three", "redis://:s3cret@host/0?s3=1"),
]


@pytest.mark.parametrize("url", URLS_OF_NOTHING)
def test_a_url_that_is_none_is_one_clear_line_without_secrets(url: str) -> None:
    with pytest.raises(ModelError, match="is not like redis://HOST") as caught:
        make_tier(url)
    assert "s3" not in str(caught.value)
