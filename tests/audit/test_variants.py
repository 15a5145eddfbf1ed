"""Kinds, not specimens: every class again in other APIs, at other places and in other words."""

from collections import Counter

import pytest

from kvikk.audit.advice import CLASSES
from tests.audit.cases import audit, is_inside
from tests.audit.variants import VARIANTS, Variant


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_miss_is_of_its_class_at_its_place(variant: Variant) -> None:
    results, findings = audit(variant.make())
    for result in results:
        account = result.account
        assert sum(account.parts.values()) == account.input_tokens
        assert account.missed_tokens == sum(one.missed_tokens for one in result.findings)
    if variant.cause is None:
        assert findings == []
        return
    told = [(one.cause, one.location) for one in findings if one.request == variant.request]
    assert any(
        cause == variant.cause and is_inside(location, variant.location) for cause, location in told
    ), told


def test_every_class_has_at_least_two_variants() -> None:
    seen = Counter(variant.cause for variant in VARIANTS)
    few = {name for name in CLASSES if seen[name] < 2}
    assert few <= {
        "expected.common_prefix_detection",  # one provider does that, and it is among the reports
        "experiment.contaminated",
    }
