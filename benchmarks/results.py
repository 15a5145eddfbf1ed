"""What was measured, kept as JSON files that documents are made from.

A file holds entries by name; a new run replaces the entries it measured and leaves the others. Each
entry says by itself when, on what and with which versions it was measured.
"""

import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from places import RESULTS

Entries = dict[str, dict[str, Any]]


def conditions(threads: int) -> dict[str, Any]:
    """When and on what."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": cpu_name(),
        "threads": threads,
        "python": platform.python_version(),
    }


def read(name: str) -> Entries:
    """The entries of one file; none if there is no such file."""
    path = _path(name)
    entries: Entries = json.loads(path.read_text()) if path.exists() else {}
    return entries


def add(name: str, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Put entries into a file, in place of those of the same names."""
    merged = {**read(name), **entries}
    path = _path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(dict(sorted(merged.items())), indent=1) + "\n")


def _path(name: str) -> Path:
    return RESULTS / f"{name}.json"


def cpu_name() -> str:
    """What the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
