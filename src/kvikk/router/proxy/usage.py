"""What an answer says it used, read from the bytes as they pass.

An event may come in any number of pieces, usage and ``[DONE]`` in different ones. Looking for it
costs a search for bytes; only what has it is parsed.
"""

import re
from typing import Any

import orjson

from kvikk.router.proxy.placement import Reported

# The key of an object: many servers write it with null in every event but one. In a string the
# quotes would be escaped, so no text can pass for it.
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_LARGEST_EVENT_BYTES = 1 << 20
_NOTHING = Reported(0, None, 0)


class UsageReader:
    """Takes an answer's body piece by piece; ``reported`` is what it has learnt so far."""

    __slots__ = ("_is_stream", "_left", "_pieces", "reported")

    def __init__(self, is_stream: bool) -> None:
        self.reported: Reported | None = None
        self._is_stream = is_stream
        self._pieces: list[bytes] = []
        self._left = _LARGEST_EVENT_BYTES

    @property
    def is_at_line(self) -> bool:
        """Whether the next piece of a stream begins a line."""
        return not self._pieces

    def feed(self, piece: bytes) -> None:
        """More of the body."""
        if not self._is_stream:
            self._left -= len(piece)
            if self._left >= 0:
                self._pieces.append(piece)
            return
        if not self._pieces and piece.endswith(b"\n") and b'"usage"' not in piece:
            return  # whole lines, and nothing in them
        self._feed_lines(piece)

    def close(self) -> None:
        """The body is whole."""
        if not self._is_stream and self._left >= 0:
            self._read(b"".join(self._pieces))
        elif self._pieces:
            self._feed_lines(b"\n")

    def _feed_lines(self, piece: bytes) -> None:
        """Look at the lines that ``piece`` completes and keep the rest."""
        whole, newline, rest = piece.rpartition(b"\n")
        if newline:
            lines = b"".join((*self._pieces, whole))
            self._pieces.clear()
            self._left = _LARGEST_EVENT_BYTES
            if _USAGE.search(lines):
                for line in lines.split(b"\n"):
                    if line.startswith(b"data:"):
                        self._read(line[5:])
        if rest:
            self._left -= len(rest)
            if self._left >= 0:
                self._pieces.append(rest)

    def _read(self, data: bytes) -> None:
        """Look for usage in one JSON object."""
        if b'"usage"' not in data:
            return
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            return
        if not isinstance(value, dict):
            return
        # At the top with OpenAI; Anthropic's first is in the message, Responses' in the response.
        for holder in (value, value.get("message"), value.get("response")):
            if isinstance(holder, dict):
                usage = holder.get("usage")
                if isinstance(usage, dict):
                    self._take(usage)
                    return

    def _take(self, usage: dict[str, Any]) -> None:
        earlier = self.reported or _NOTHING
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
        read = usage.get("cache_read_input_tokens")
        if isinstance(read, int):  # Anthropic counts apart what was read and what was written
            cached = read
            if isinstance(prompt, int):
                written = usage.get("cache_creation_input_tokens")
                prompt += read + (written if isinstance(written, int) else 0)
        completion = usage.get("completion_tokens", usage.get("output_tokens"))
        self.reported = Reported(
            prompt if isinstance(prompt, int) else earlier.prompt_tokens,
            cached if isinstance(cached, int) else earlier.cached_tokens,
            completion if isinstance(completion, int) else earlier.completion_tokens,
        )
