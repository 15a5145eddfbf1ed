"""The page on the cache tells the truth."""

import doctest
from pathlib import Path


def test_the_session_on_the_cache_page_runs_as_printed() -> None:
    page = Path(__file__).parents[2] / "docs" / "cache.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 10
    assert result.failed == 0
