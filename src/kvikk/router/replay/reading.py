"""Traces from files, in the forms that there are.

* **Mooncake**, JSON lines: ``timestamp`` in ms, ``input_length``, ``output_length``, ``hash_ids``
  of 512-token blocks.
* **coding agents** (kv-cache-tester), a JSON file a session, usually a folder of them:
  ``block_size`` and ``requests`` of ``t`` in s, ``in``, ``out``, ``hash_ids``; requests of
  sub-agents are nested.
* **ledger logs** of ``kvikk serve`` and decision logs of ``kvikk route``, JSON lines: ``at``,
  ``prompt_tokens``, ``block_size``, ``block_keys``.
* **texts**, JSON lines: agents' (``timestamp`` in µs, ``input``, ``output``, ``session_id``) and
  request logs (``at_s``, ``request`` with the body), cut into chunks of bytes.
"""

import json
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from kvikk.cache.keys import content_keys
from kvikk.errors import RequestError
from kvikk.router.replay.trace import Trace, TracedRequest
from kvikk.wire.segments_any import guess_api, segments

MOONCAKE_BLOCK_TOKENS = 512
# Texts: a token is about four bytes in any tokeniser, a chunk 64 of them.
_TOKEN_BYTES = 4
_CHUNK_BYTES = 256
_PROGRESS_BYTES = 1 << 20

_EXPECTED = (
    "expected a request of Mooncake's form (timestamp, input_length, output_length, hash_ids), of "
    "a ledger or decision log (at, prompt_tokens, block_size, block_keys), an agent's (timestamp, "
    "input, output) or of a request log (at_s, request)"
)


@dataclass(frozen=True, slots=True)
class _Raw:
    """A request with the block size it came with."""

    block_tokens: int
    request: TracedRequest


def trace_files(path: Path) -> list[Path]:
    """The file itself, or all ``.jsonl`` and ``.json`` files of a folder."""
    return sorted([*path.glob("*.jsonl"), *path.glob("*.json")]) if path.is_dir() else [path]


def read_trace(
    path: Path,
    spread_s: float = 7200.0,
    block_tokens: int | None = None,
    progress: Callable[[int], None] = lambda num_bytes: None,
) -> Trace:
    """A file, or all ``.jsonl`` and ``.json`` files of a folder, as one trace by arrival.

    Sessions that come in files of their own begin evenly over ``spread_s``. With ``block_tokens``,
    a multiple of the trace's own, so many are one block. ``progress`` is told how many bytes of
    lines have been read since it was told last. Raises RequestError, naming file and line.
    """
    files = trace_files(path)
    raw: list[_Raw] = []
    names: dict[Hashable, Hashable] = {}
    sessions = [file for file in files if file.suffix == ".json"]
    for file in files:
        if file.suffix == ".json":
            begins_s = spread_s * sessions.index(file) / len(sessions)
            raw += _read_session(file, begins_s)
        else:
            raw += _read_lines(file, names, progress)
    if not raw:
        raise RequestError(f"{path}: no requests in it; expected .jsonl or .json files")
    sizes = {one.block_tokens for one in raw}
    if len(sizes) > 1:
        raise RequestError(f"{path}: blocks of {sorted(sizes)} tokens; a trace has one block size")
    trace = Trace(
        tuple(sorted((one.request for one in raw), key=lambda request: request.arrival_s)),
        sizes.pop(),
    )
    return trace if block_tokens is None else _regrouped(trace, block_tokens)


def _read_lines(
    file: Path, names: dict[Hashable, Hashable], progress: Callable[[int], None]
) -> Iterator[_Raw]:
    num_bytes = 0
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                num_bytes += len(line)
                if num_bytes > _PROGRESS_BYTES:
                    progress(num_bytes)
                    num_bytes = 0
                if line.strip():
                    yield _read_line(line, f"{file}:{number}", names)
    except OSError as error:
        raise RequestError(f"{file}: cannot be read: {error.strerror}") from None


def _read_line(line: bytes, place: str, names: dict[Hashable, Hashable]) -> _Raw:
    """One request of any form. ``names`` makes equal block names one object: traces repeat them."""
    match _json(line, place):
        case {
            "timestamp": int() | float() as timestamp,
            "input_length": int(prompt_tokens),
            "output_length": int(output_tokens),
            "hash_ids": list(ids),
        }:
            size, at_s, blocks = MOONCAKE_BLOCK_TOKENS, timestamp / 1e3, ids
            session = key = None
        case {
            "at": int() | float() as at_s,
            "prompt_tokens": int(prompt_tokens),
            "block_size": int(size),
            "block_keys": list(blocks),
        } as value:
            output_tokens = value.get("completion_tokens", 0)
            session, key = value.get("session"), value.get("key")
        case {
            "timestamp": int() | float() as timestamp,
            "input": str(text),
            "output": str(answer),
        } as value:
            return _text(
                timestamp / 1e6, text, len(answer) // _TOKEN_BYTES, value.get("session_id")
            )
        case {"at_s": int() | float() as at_s, "request": dict(body)}:
            api = guess_api(body)
            pieces = segments(api, body) if api else []
            text = "\0".join(f"{piece.role}\0{piece.text}" for piece in pieces)
            key = body.get("prompt_cache_key")
            return _text(at_s, text, 0, key, key)
        case _:
            raise RequestError(f"{place}: no request; {_EXPECTED}")
    if prompt_tokens < 1 or not isinstance(output_tokens, int) or output_tokens < 0 or size < 1:
        lengths = f"lengths {prompt_tokens} and {output_tokens}, block size {size}"
        raise RequestError(f"{place}: {lengths}: these are numbers of tokens")
    if not all(isinstance(block, int | str) for block in blocks):
        raise RequestError(f"{place}: a block's name is a number or a text")
    named = tuple(names.setdefault(block, block) for block in blocks)
    return _Raw(
        size,
        TracedRequest(at_s, prompt_tokens, output_tokens, named, _name(session), _key(key)),
    )


def _text(at_s: float, text: str, output_tokens: int, session: object, key: object = None) -> _Raw:
    content = text.encode("utf-8", "surrogatepass")
    keys = tuple(content_keys(b"", content, _CHUNK_BYTES))
    prompt_tokens = max(1, len(content) // _TOKEN_BYTES)
    request = TracedRequest(at_s, prompt_tokens, output_tokens, keys, _name(session), _key(key))
    return _Raw(_CHUNK_BYTES // _TOKEN_BYTES, request)


def _read_session(file: Path, begins_s: float) -> Iterator[_Raw]:
    try:
        value = _json(file.read_bytes(), str(file))
    except OSError as error:
        raise RequestError(f"{file}: cannot be read: {error.strerror}") from None
    match value:
        case {"block_size": int(size), "requests": list(requests)} if size > 0:
            scope = None if value.get("hash_id_scope") == "global" else file.name
            for one in requests:
                yield from _read_turn(one, str(file), begins_s, size, scope)
        case _:
            raise RequestError(f"{file}: no session; expected block_size and requests")


def _read_turn(
    value: Any, place: str, begins_s: float, size: int, scope: str | None
) -> Iterator[_Raw]:
    """A turn, or those of a sub-agent."""
    match value:
        case {"requests": list(nested)}:
            for one in nested:
                yield from _read_turn(one, place, begins_s, size, scope)
        case {"t": int() | float() as at_s, "in": int(prompt_tokens), "hash_ids": list(ids)}:
            # Without the scope the same numbers would be other sessions' blocks.
            blocks = tuple(ids) if scope is None else tuple((scope, one) for one in ids)
            request = TracedRequest(
                begins_s + at_s, prompt_tokens, int(value.get("out") or 0), blocks, place
            )
            yield _Raw(size, request)
        case _:
            raise RequestError(f"{place}: a request without t, in and hash_ids")


def _regrouped(trace: Trace, block_tokens: int) -> Trace:
    """The same trace in larger blocks: only whole ones."""
    group, rest = divmod(block_tokens, trace.block_tokens)
    if rest or group < 1:
        raise RequestError(
            f"--block-size {block_tokens} is no multiple of the trace's {trace.block_tokens}"
        )
    names: dict[Hashable, int] = {}
    requests = []
    for request in trace.requests:
        parent, blocks = -1, []
        for stop in range(group, len(request.blocks) + 1, group):
            own = (parent, *request.blocks[stop - group : stop])
            parent = names.setdefault(own, len(names))
            blocks.append(parent)
        requests.append(
            TracedRequest(
                request.arrival_s,
                request.prompt_tokens,
                request.output_tokens,
                tuple(blocks),
                request.session,
                request.key,
            )
        )
    return Trace(tuple(requests), block_tokens)


def _json(line: bytes, place: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise RequestError(f"{place}: is not JSON: {error}") from None


def _name(session: object) -> Hashable | None:
    return str(session) if isinstance(session, int | str) and session != "" else None


def _key(word: object) -> bytes:
    if not isinstance(word, str) or not word:
        return b""
    return sha256(word.encode("utf-8", "surrogatepass")).digest()
