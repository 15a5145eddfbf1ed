"""The published configurations that the tests read."""

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


def published(name: str) -> dict[str, Any]:
    """The configuration in ``data/configs`` whose file is called ``name``, without its ending."""
    config: dict[str, Any] = json.loads((DATA / "configs" / f"{name}.json").read_text())
    return config


def published_names() -> list[str]:
    """The names of all of them."""
    return sorted(path.stem for path in (DATA / "configs").glob("*.json"))
