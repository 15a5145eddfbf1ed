"""Put what is in ``results/`` into ``docs/benchmarks.md``: ``report.py [--check]``.

``--check`` changes nothing and fails if the page is not what it would make of it. Tables stand
between a line ``<!-- NAME -->`` and the next ``<!-- end -->``; what is between them is replaced.
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
    """The document with its tables made anew. Exits with a line if figures have no place in it."""
    for name, table in TABLES.items():
        entries = results.read(name)
        if not entries:
            continue
        place = re.compile(f"(<!-- {name} -->\n).*?(<!-- end -->\n)", re.DOTALL)
        if not place.search(text):
            sys.exit(f"{DOCUMENT} has no lines <!-- {name} --> and <!-- end -->")
        made = f"\n{table(entries)}\n\n"
        text = place.sub(lambda found, made=made: found[1] + made + found[2], text)
    return text


def main() -> None:
    """Write the page, or compare it."""
    text = DOCUMENT.read_text()
    made = with_tables(text)
    if sys.argv[1:] == ["--check"]:
        sys.exit(f"{DOCUMENT} is not made from results/; run report.py" if made != text else 0)
    DOCUMENT.write_text(made)


if __name__ == "__main__":
    main()
