"""Put what is in ``results/`` into the pages of ``docs/``: ``report.py [--check]``.

``--check`` changes nothing and fails if a page is not what it would make of it. Tables stand
between a line ``<!-- NAME -->`` and the next ``<!-- end -->``; what is between them is replaced.
"""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import results
from router_table import router_table
from tables import (
    conversation_table,
    footprint_tables,
    growth_tables,
    speed_tables,
    tier_table,
)

DOCS = Path(__file__).parents[1] / "docs"
Tables = Mapping[str, Callable[[results.Entries], str]]
PAGES: Mapping[str, Tables] = {
    "benchmarks.md": {
        "speed": speed_tables,
        "conversations": conversation_table,
        "growth": growth_tables,
        "footprint": footprint_tables,
    },
    "tiers.md": {"tiers": tier_table},
    "router.md": {"router": router_table},
}


def with_tables(page: Path, tables: Tables) -> str:
    """The page with its tables made anew. Exits with a line if figures have no place in it."""
    text = page.read_text()
    for name, table in tables.items():
        entries = results.read(name)
        if not entries:
            continue
        place = re.compile(f"(<!-- {name} -->\n).*?(<!-- end -->\n)", re.DOTALL)
        if (found := place.search(text)) is None:
            sys.exit(f"{page} has no lines <!-- {name} --> and <!-- end -->")
        made = f"\n{table(entries)}\n\n"
        text = text[: found.end(1)] + made + text[found.start(2) :]
    return text


def main() -> None:
    """Write the pages, or compare them."""
    for name, tables in PAGES.items():
        page = DOCS / name
        made = with_tables(page, tables)
        if sys.argv[1:] != ["--check"]:
            page.write_text(made)
        elif made != page.read_text():
            sys.exit(f"{page} is not made from results/; run report.py")


if __name__ == "__main__":
    main()
