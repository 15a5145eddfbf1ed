"""Workloads from recorded traffic: its arrivals, its lengths, and what its prompts had in common.

Two forms, both JSON lines:

* **Mooncake**: ``timestamp`` in ms, ``input_length``, ``output_length`` and ``hash_ids``, one a
  block of 512 tokens. An id becomes a text of its own, so that prompts share what they shared.
* **agent text** (LMCache): ``timestamp`` in µs, ``session_id``, ``input`` and ``output`` in full.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from kvikk.bench.target import Lengths
from kvikk.bench.workloads import Session, Turn
from kvikk.errors import RequestError
from kvikk.text.words import text_of

BLOCK_TOKENS = 512  # of Mooncake's hash ids
# An agent's answer is there as text; this many characters are about a token in any tokeniser.
_CHARACTERS_A_TOKEN = 4


@dataclass(frozen=True)
class TracedRequest:
    """One request: when, how long, and its text or the ids of the blocks that it is made of."""

    arrival_s: float
    output_tokens: int
    text: str | None = None
    input_tokens: int = 0
    block_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Trace:
    """Requests by arrival, as a workload.

    ``shrink`` divides all lengths of a Mooncake trace, blocks included, to fit a small model or a
    slow machine with what is shared still shared. ``speed`` divides the times between arrivals.
    """

    requests: tuple[TracedRequest, ...] = field(repr=False)
    shrink: int = 1
    speed: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.shrink <= BLOCK_TOKENS:
            raise RequestError(f"--shrink is {self.shrink}; expected 1 to {BLOCK_TOKENS}")
        if self.shrink > 1 and all(request.text is not None for request in self.requests):
            raise RequestError("--shrink divides a Mooncake trace; this one has whole texts")
        if not self.speed > 0:
            raise RequestError(f"--speed is {self.speed}; it must be above 0")

    @property
    def num_requests(self) -> int:
        """Requests in all."""
        return len(self.requests)

    def sessions(self, lengths: Lengths, seed: int) -> Iterator[Session]:
        """A session a request, at its moment; the first one comes at once."""
        first_s = self.requests[0].arrival_s
        for request in self.requests:
            if request.text is None:
                text = partial(self._blocks_text, request, lengths, seed)
                output_tokens = max(1, request.output_tokens // self.shrink)
            else:
                text = partial(str, request.text)
                output_tokens = request.output_tokens
            arrival_s = (request.arrival_s - first_s) / self.speed
            yield Session((Turn(text, output_tokens),), arrival_s=arrival_s)

    def _blocks_text(self, request: TracedRequest, lengths: Lengths, seed: int) -> str:
        """Whole blocks, the last one cut to the prompt's length."""
        num_tokens = max(1, request.input_tokens // self.shrink - round(lengths.fixed_tokens))
        words_left = lengths.words(num_tokens)
        block_words = lengths.words(BLOCK_TOKENS // self.shrink)
        texts = []
        for block_id in request.block_ids:
            if words_left <= 0:
                break
            texts.append(text_of(min(block_words, words_left), seed, "block", block_id))
            words_left -= block_words
        return " ".join(texts)


def read_trace(path: Path, limit: int | None = None) -> tuple[TracedRequest, ...]:
    """The first ``limit`` requests of a file, or of all ``.jsonl`` files of a folder, by arrival.

    Raises RequestError, naming file and line, for what is no request, and for an empty trace.
    """
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    requests = sorted(
        (request for file in files for request in _read_file(file)),
        key=lambda request: request.arrival_s,
    )
    if not requests:
        raise RequestError(f"{path}: no requests in it; expected JSON lines")
    return tuple(islice(requests, limit))


def _read_file(path: Path) -> Iterator[TracedRequest]:
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _read_line(line, f"{path}:{number}")
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RequestError(f"{path}: is not UTF-8 text; expected JSON lines") from None


def _read_line(line: str, place: str) -> TracedRequest:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise RequestError(f"{place}: is not JSON: {error}") from None
    match value:
        case {
            "timestamp": int() | float() as timestamp,
            "input_length": int(input_tokens),
            "output_length": int(output_tokens),
            "hash_ids": list(block_ids),
        } if all(type(block_id) is int for block_id in block_ids):
            if input_tokens < 1 or output_tokens < 0:
                raise RequestError(f"{place}: lengths {input_tokens}, {output_tokens}")
            if len(block_ids) * BLOCK_TOKENS < input_tokens:
                raise RequestError(
                    f"{place}: {len(block_ids)} blocks of {BLOCK_TOKENS} tokens are less than the "
                    f"input of {input_tokens}"
                )
            return TracedRequest(
                timestamp / 1e3, output_tokens, None, input_tokens, tuple(block_ids)
            )
        case {"timestamp": int() | float() as timestamp, "input": str(text), "output": str(output)}:
            output_tokens = max(1, len(output) // _CHARACTERS_A_TOKEN)
            return TracedRequest(timestamp / 1e6, output_tokens, text)
    raise RequestError(
        f"{place}: neither a Mooncake request (timestamp, input_length, output_length, hash_ids) "
        "nor an agent's (timestamp, input, output)"
    )
