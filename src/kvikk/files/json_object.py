"""JSON files that hold one object, such as ``config.json``."""

import json
from pathlib import Path
from typing import Any

from kvikk.errors import ModelError


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``. Raises ModelError, naming the file, if there is none."""
    try:
        return parse_json_object(path, path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None


def parse_json_object(path: Path, text: bytes) -> dict[str, Any]:
    """The JSON object that ``text``, a part of the file ``path``, holds.

    Raises ModelError, naming the file, if it is anything else or states a key twice.
    """
    try:
        value = json.loads(text.decode(), object_pairs_hook=_without_duplicates)
    except UnicodeDecodeError:
        raise ModelError(f"{path}: not UTF-8 text; expected a JSON object") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return members
