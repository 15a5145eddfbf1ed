"""A log of any form, or of several at once: each record is asked of one reader after the other."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from kvikk.audit.exchange import Exchange, make_exchange
from kvikk.audit.readers.bodies import read_body
from kvikk.audit.readers.claude_code import ClaudeCodeReader
from kvikk.audit.readers.found import Found
from kvikk.audit.readers.ledger_line import read_ledger_line
from kvikk.audit.readers.lines import lines
from kvikk.audit.readers.litellm import read_litellm
from kvikk.audit.readers.own_line import read_own_line

_MOST_EXAMPLES = 5
_WHOLE_FILE_BYTES = 256 << 20

Reader = Callable[[dict[str, Any]], list[Found] | None]


@dataclass
class LogCounts:
    """What became of a log's lines. ``examples`` are a few places that are broken, and why."""

    lines: int = 0
    broken: int = 0
    other: int = 0
    examples: list[str] = field(default_factory=list)

    def break_line(self, place: str, reason: str) -> None:
        """Count a line that cannot be read."""
        self.broken += 1
        if len(self.examples) < _MOST_EXAMPLES:
            self.examples.append(f"{place}: {reason}")


class LogReader:
    """Reads files in the order given, as one log. ``counts`` grows while it reads."""

    def __init__(self, files: Sequence[Path], progress: Callable[[int], None]) -> None:
        self._files = files
        self._progress = progress
        self._readers: tuple[Reader, ...] = (
            read_own_line,
            read_litellm,
            read_ledger_line,
            ClaudeCodeReader(),
            read_body,
        )
        self.counts = LogCounts()
        self._index = 0

    def __iter__(self) -> Iterator[Exchange]:
        for file in self._files:
            for record in self._records(file):
                yield from self._exchanges(record)

    def _records(self, file: Path) -> Iterator[Any]:
        """The JSON values of a file: one a line, or one list of them."""
        waiting = iter(lines(file, self._progress))
        for number, line in enumerate(waiting, 1):
            place = f"{file.name} line {number:,}"
            if line is None:
                self.counts.lines += 1
                self.counts.break_line(place, "cannot be read to its end")
                continue
            stripped = line.strip().removeprefix(b"\xef\xbb\xbf")
            if not stripped:
                continue
            if number == 1 and stripped[:1] == b"[" and stripped[-1:] != b"]":
                stripped = _all_of(stripped, waiting)
            self.counts.lines += 1
            try:
                record = orjson.loads(stripped)
            except orjson.JSONDecodeError as error:
                try:
                    record = orjson.loads(stripped.decode("utf-8", "replace"))
                except orjson.JSONDecodeError:
                    self.counts.break_line(place, str(error).partition(":")[0])
                    continue
                self.counts.break_line(place, "is not UTF-8; read with its wrong bytes replaced")
            yield from record if isinstance(record, list) else (record,)

    def _exchanges(self, record: object) -> Iterator[Exchange]:
        if isinstance(record, dict):
            for read in self._readers:
                found = read(record)
                if found is None:
                    continue
                if not found:
                    self.counts.other += 1
                for one in found:
                    exchange = make_exchange(
                        self._index,
                        one.body,
                        api=one.api,
                        provider=one.provider,
                        response=one.response,
                        upstream=one.upstream,
                        usage=one.usage,
                        **one.known,
                    )
                    if exchange is None:
                        self.counts.other += 1
                        continue
                    self._index += 1
                    yield exchange
                return
        self.counts.other += 1


def _all_of(first: bytes, rest: Iterator[bytes | None]) -> bytes:
    """A list that is printed over many lines, put together."""
    parts, size = [first], len(first)
    for line in rest:
        size += 0 if line is None else len(line)
        if line is None or size > _WHOLE_FILE_BYTES:
            break
        parts.append(line)
    return b"\n".join(parts)
