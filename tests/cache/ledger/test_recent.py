"""The bounded memory against a dictionary, and its bound."""

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from kvikk.cache.ledger.recent import RecentTable, bytes_per_row

ROW = np.dtype([("value", np.int64)])
# Few fingerprints, many of which fall into the same slot.
FINGERPRINTS = st.sampled_from([0, 1, 2, 3, 16, 32, 64, 2**32, 2**63, 2**64 - 1])


def rows(values: list[int]) -> np.ndarray:
    return np.array([(value,) for value in values], ROW)


@given(st.lists(st.lists(FINGERPRINTS, max_size=6), max_size=12), st.integers(1, 40))
def test_the_newest_row_of_each_fingerprint_is_found_while_it_is_within_half_the_capacity(
    batches: list[list[int]], capacity: int
) -> None:
    table, added = RecentTable(capacity, ROW), []
    for batch in batches:
        numbers = list(range(len(added), len(added) + len(batch)))
        table.add(np.array(batch, np.uint64), rows(numbers))
        added += batch
    newest = {fingerprint: number for number, fingerprint in enumerate(added)}
    wanted = [0, 1, 2, 3, 16, 32, 64, 2**32, 2**63, 2**64 - 1, 5]
    found, values = table.find(np.array(wanted, np.uint64))
    for fingerprint, is_found, value in zip(wanted, found, values["value"], strict=True):
        if is_found:
            assert value == newest[fingerprint]
        elif fingerprint in newest:
            assert newest[fingerprint] < len(added) - max(1, capacity // 2)
    assert len(table) <= max(2, capacity)


def test_a_million_rows_stay_within_the_memory_that_was_promised() -> None:
    table = RecentTable(20_000, ROW)
    generator = np.random.default_rng(0)
    for _ in range(100):
        fingerprints = generator.integers(0, 2**63, 10_000).astype(np.uint64)
        table.add(fingerprints, np.zeros(10_000, ROW))
    generations = (table._young, table._old)
    held = sum(
        array.nbytes for one in generations for array in (one.rows, one._fingerprints, one._slots)
    )
    assert held <= 20_000 * bytes_per_row(ROW)
    assert table.find(fingerprints[-10_000:])[0].all()
