"""A mend put into the log takes its finding away, brings no other, and costs less."""

from typing import Any

import pytest

from kvikk.audit.auditor import Auditor
from kvikk.audit.exchange import Exchange, make_exchange
from kvikk.audit.findings import is_expected
from kvikk.audit.mends.replay import Replay, by_rules, played, sums
from tests.audit.variants import VARIANTS, Variant

# Nothing that a machine could put into a request helps against these, or the rules know them not.
_NOT_MECHANICAL = (
    "below_minimum",
    "model.switched",
    "routing.key_missing",
    "routing.key_shared_overflow",
    "provider.unexplained",
    "accounting.normalisation",
    "expected.",
    "experiment.",
)


def exchanges(lines: list[dict[str, Any]]) -> list[Exchange]:
    """A log's exchanges, all of the same account of tokens."""
    found = []
    for index, line in enumerate(lines):
        known = {name: value for name, value in line.items() if name != "request"}
        upstream = known.pop("upstream_request", None)
        exchange = make_exchange(index, line["request"], upstream=upstream, **known)
        assert exchange is not None
        found.append(exchange)
    return found


def ruled(log: list[Exchange]) -> list[dict[str, Any]]:
    """Findings by the rules alone."""
    auditor = Auditor()
    audits = [auditor.feed(by_rules(exchange)) for exchange in log]
    return [finding.to_json() for audit in audits for finding in audit.findings]


MECHANICAL = [
    variant
    for variant in VARIANTS
    if variant.cause is not None
    and not variant.cause.startswith(_NOT_MECHANICAL)
    and variant.name != "seventy_minutes_after_an_hour_without_counts"  # none is longer
]


@pytest.mark.parametrize("variant", MECHANICAL, ids=lambda variant: variant.name)
def test_a_mend_takes_its_finding_away_and_brings_no_other(variant: Variant) -> None:
    log = exchanges(variant.make())
    auditor = Auditor()
    findings = [one.to_json() for each in log for one in auditor.feed(each).findings]
    assert variant.cause is not None
    replay = Replay(variant.cause, findings)
    changed = [replay.changed(exchange) for exchange in log]
    assert replay.mended
    before = {one["cause"] for one in ruled(log)}
    left = {one["cause"] for one in ruled(changed) if not is_expected(one["cause"])}
    assert variant.cause not in left
    assert left <= before
    was, now = (sums(played(one)) for one in (log, changed))
    # History sent again as it was may be longer than what took its place.
    longer = variant.cause.startswith(("history.", "breakpoint.", "context."))
    if variant.cause in before and was.in_input_tokens and now.in_input_tokens:
        assert longer or now.in_input_tokens < was.in_input_tokens
