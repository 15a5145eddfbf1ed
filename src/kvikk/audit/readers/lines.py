"""The lines of a log, however it is packed, in bounded memory."""

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from kvikk.errors import RequestError

# A longer line is no request; it is counted as broken and passed over.
MOST_LINE_BYTES = 512 << 20
_GZIP = b"\x1f\x8b"


def lines(file: Path, progress: Callable[[int], None]) -> Iterator[bytes | None]:
    """Each line; None for one that cannot be read. ``progress`` is told bytes of the file read.

    Raises RequestError if the file cannot be opened.
    """
    try:
        with file.open("rb") as raw:
            yield from _lines(raw, progress)
    except OSError as error:
        raise RequestError(f"the log {file} cannot be read: {error.strerror or error}") from None


def _lines(raw: BinaryIO, progress: Callable[[int], None]) -> Iterator[bytes | None]:
    packed = raw.read(2) == _GZIP
    raw.seek(0)
    source: BinaryIO | gzip.GzipFile = gzip.GzipFile(fileobj=raw) if packed else raw
    told = 0
    while True:
        try:
            line = source.readline(MOST_LINE_BYTES)
        except (EOFError, gzip.BadGzipFile, OSError):
            yield None  # a packed file that ends in the middle, or is damaged
            return
        if not line:
            return
        too_long = len(line) == MOST_LINE_BYTES and not line.endswith(b"\n")
        while too_long and line and not line.endswith(b"\n"):
            line = source.readline(MOST_LINE_BYTES)
        yield None if too_long else line
        if (at := raw.tell()) != told:
            progress(at - told)
            told = at
