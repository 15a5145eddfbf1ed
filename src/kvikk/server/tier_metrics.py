"""Metrics of the tiers below the pool, by tier."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from kvikk.engine.tiering import TieringStats


def tier_metrics(stats: TieringStats, labels: Mapping[str, str]) -> Iterator[Metric]:
    """What each tier holds and did; nothing without tiers."""
    if not stats.tiers:
        return
    names = [*labels, "tier"]
    for name, text, field in [
        ("kvikk_tier_blocks", "Blocks known to be in a tier.", "used_blocks"),
        ("kvikk_tier_bytes", "Bytes of them.", "used_bytes"),
    ]:
        gauge = GaugeMetricFamily(name, text, labels=names)
        for tier in stats.tiers:
            gauge.add_metric([*labels.values(), tier.name], getattr(tier, field))
        yield gauge
    works = GaugeMetricFamily(
        "kvikk_tier_works", "1 if a tier is used, 0 in trouble.", labels=names
    )
    for tier in stats.tiers:
        works.add_metric([*labels.values(), tier.name], float(tier.trouble is None))
    yield works
    for name, text, field in [
        ("kvikk_tier_stored_blocks", "Blocks put into a tier.", "stored"),
        ("kvikk_tier_loaded_blocks", "Blocks got from a tier.", "loaded"),
        ("kvikk_tier_evicted_blocks", "Blocks that made room in a tier.", "evicted"),
        ("kvikk_tier_unfit_blocks", "Blocks that were damaged or of another engine.", "unfit"),
        ("kvikk_tier_failures", "Operations that a tier failed.", "failures"),
    ]:
        counter = CounterMetricFamily(name, text, labels=names)
        for tier in stats.tiers:
            counter.add_metric([*labels.values(), tier.name], getattr(tier, field))
        yield counter
    dropped = CounterMetricFamily(
        "kvikk_tier_dropped_blocks", "Blocks that came too fast to be written.", labels=[*labels]
    )
    dropped.add_metric([*labels.values()], stats.dropped_blocks)
    yield dropped
