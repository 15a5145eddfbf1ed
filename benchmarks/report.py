"""Put what is in ``results/`` into ``docs/benchmarks.md``: ``python benchmarks/report.py``.

Tables stand between a line ``<!-- NAME -->`` and the next ``<!-- end -->``; what is between them is
replaced.
"""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import results
from tables import conversation_table, footprint_tables, growth_tables, speed_tables

DOCUMENT = Path(__file__).parents[1] / "docs" / "benchmarks.md"
TABLES: Mapping[str, Callable[[results.Entries], str]] = {
    "speed": speed_tables,
    "conversations": conversation_table,
    "growth": growth_tables,
    "footprint": footprint_tables,
}


def with_tables(text: str) -> str:
    """The document with every table made anew. Exits with a line if one has no place in it."""
    for name, table in TABLES.items():
        place = re.compile(f"(<!-- {name} -->\n).*?(<!-- end -->\n)", re.DOTALL)
        if not place.search(text):
            sys.exit(f"{DOCUMENT} has no lines <!-- {name} --> and <!-- end -->")
        entries = results.read(name)
        if entries:
            made = f"\n{table(entries)}\n\n"
            text = place.sub(lambda found, made=made: found[1] + made + found[2], text)
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text()))
