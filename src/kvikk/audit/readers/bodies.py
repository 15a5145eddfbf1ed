"""Bare bodies, one a line: all that is known is what was sent, in which order."""

from typing import Any

from kvikk.audit.readers.found import Found
from kvikk.wire.segments_any import guess_api


def read_body(record: dict[str, Any]) -> list[Found] | None:
    """One exchange of a record that is itself a body of a known API; None for any other."""
    return None if guess_api(record) is None else [Found(record)]
