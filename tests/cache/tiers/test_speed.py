"""Measured speeds: a moving average that does not hold an old slowness against anybody."""

from kvikk.cache.tiers.speed import FORGET_S, Average


def test_what_was_slow_long_ago_does_not_weigh_on_what_is_fast_now() -> None:
    now_s = 0.0
    latency = Average(lambda: now_s)
    latency.feed(2.0)
    latency.feed(0.0)
    assert latency.value == 1.4
    now_s = FORGET_S + 1
    assert (latency.value, latency.latest) == (None, 1.4)
    latency.feed(0.001)
    assert latency.value == latency.latest == 0.001
