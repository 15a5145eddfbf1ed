"""JSON files that hold one object, such as ``config.json``."""

import json
from pathlib import Path
from typing import Any

from kvikk.errors import ModelError

# The index of a model of a trillion weights takes a tenth of this. Parsed, JSON takes some ten
# times its size in memory.
_LARGEST_BYTES = 128 * 2**20


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``.

    Raises ModelError, naming the file, if there is none or the file is far too large for one.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes > _LARGEST_BYTES:
            raise ModelError(
                f"{path}: {size_bytes >> 20} MiB of JSON; at most {_LARGEST_BYTES >> 20} are read"
            )
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
        # A message may quote a number of a million digits.
        raise ModelError(f"{path}: not valid JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return members
