"""A request's prompt for the rules: its pieces from the body, their tokens from what was rendered.

    body       [ tools ][ system · · · ][ user · · ]
    rendered   <|im_start|>system\n[ system · · · ]<|im_end|>\n…[ user · · ]<|im_end|>\n<|im_start|>
    tokens      ·  ·  ·  ·  ·  ·  ·  ·  ·| ·  ·  ·  ·  ·  ·  · ·|·  ·  ·  ·

What a piece is, is compared as sent; how long it is, is counted where the template put it. A piece
that is not found as it was sent (templates write tools in their own way) ends where the next one
begins, and a token belongs to a piece if all of it does.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from kvikk.pricing.prompt import Marker, Position, ProviderPrompt, TokenDigests
from kvikk.server.keys import Caller
from kvikk.server.question import Question
from kvikk.text.places import Part
from kvikk.text.tokenizer import Tokenizer
from kvikk.wire.key_parameters import key_parameters
from kvikk.wire.segments import Segment
from kvikk.wire.segments_any import segments
from kvikk.wire.segments_json import mapping


class ProviderPrompts:
    """Makes prompts for the rules from what was asked of a server."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def of(self, question: Question, caller: Caller) -> ProviderPrompt:
        """A question's prompt. Who shares a cache salt shares a provider's account."""
        body, token_ids = question.body, question.prompt.token_ids
        pieces: Sequence[Segment] = ()
        if question.api == "completions":
            digests = TokenDigests(token_ids)
            whole = Position(
                len(token_ids), digests(len(token_ids)), role="user", ends_message=True
            )
            positions: tuple[Position, ...] = (whole,)
        else:
            pieces = segments(question.api, dict(body))
            # Tools come first at every provider, wherever a template puts them, if anywhere.
            digests = TokenDigests(token_ids, _digest_of_tools(pieces))
            positions = self._positions(pieces, token_ids, question.prompt.parts)
        options = mapping(body.get("prompt_cache_options"))
        lifetime = options.get("ttl") or body.get("prompt_cache_retention") or ""
        return ProviderPrompt(
            positions,
            len(token_ids),
            account=f"{caller.tenant}\0{question.fields.cache_salt}",
            model=question.fields.model,
            cache_key=str(body.get("prompt_cache_key") or ""),
            parameters=key_parameters(body, pieces),
            explicit=options.get("mode") == "explicit",
            lifetime=str(lifetime),
            digest_at=digests,
        )

    def _positions(
        self, pieces: Sequence[Segment], token_ids: Sequence[int], parts: Sequence[Part]
    ) -> tuple[Position, ...]:
        digest = b""
        positions, placed = [], 0
        for piece, stop in zip(pieces, self._stops(pieces, token_ids, parts), strict=True):
            digest = _with(digest, piece)
            marker = piece.marker
            positions.append(
                Position(
                    stop - placed,
                    digest,
                    piece.section,
                    piece.kind,
                    piece.role,
                    piece.ends_message,
                    None if marker is None else Marker(marker.ttl, marker.path),
                    piece.path,
                )
            )
            placed = stop
            digest = _closed(digest, piece.ends_message)
        return tuple(positions)

    def _stops(
        self, pieces: Sequence[Segment], token_ids: Sequence[int], parts: Sequence[Part]
    ) -> list[int]:
        """How many tokens there are up to the end of each piece."""
        spellings = [self._tokenizer.token_bytes(token, special=True) for token in token_ids]
        token_stops = list(accumulate(map(len, spellings)))
        text = b"".join(spellings).decode("utf-8", "replace")
        starts, stops = _bytes_of(text, parts)
        stop_tokens: list[int | None] = []
        begins: list[int | None] = []
        at = 0
        for piece in pieces:
            path = piece.path.removeprefix("$.")
            first = at
            while at < len(parts) and _lies_in(parts[at].path, path):
                at += 1
            stop_tokens.append(bisect_right(token_stops, stops[at - 1]) if at > first else None)
            begins.append(bisect_right(token_stops, starts[first]) if at > first else None)
        return _filled(stop_tokens, begins, len(token_ids))


def answer_digest(prompt: ProviderPrompt, text: str) -> bytes:
    """Names ``prompt`` and the answer to it, as the next turn's prompt does if it has both."""
    piece = Segment("", "messages", "text", text, role="assistant", ends_message=True)
    last = prompt.positions[-1] if prompt.positions else None
    return _with(b"" if last is None else _closed(last.digest, last.ends_message), piece)


def _with(front: bytes, piece: Segment) -> bytes:
    """Names a prompt up to ``piece``, whatever comes behind it, in its message or after."""
    return hashlib.sha256(front + _digest(piece)).digest()


def _closed(digest: bytes, ends_message: bool) -> bytes:
    """The same for what comes behind: a message's next block and a next message are two things."""
    return hashlib.sha256(digest).digest() if ends_message else digest


def _digest(piece: Segment) -> bytes:
    """Names what a piece is and says; where a marker stands is no part of that."""
    names = (piece.section, piece.kind, piece.role)
    text = piece.text.encode("utf-8", "surrogatepass")
    return hashlib.sha256("\0".join(names).encode() + b"\0" + text).digest()


def _digest_of_tools(pieces: Sequence[Segment]) -> bytes:
    return b"".join(_digest(piece) for piece in pieces if piece.section == "tools")


def _lies_in(path: str, piece: str) -> bool:
    """Whether the text at ``path`` is a piece or in it; of either the other may be the string."""
    return path == piece or path.startswith((f"{piece}.", f"{piece}[")) or piece == f"{path}.text"


def _bytes_of(text: str, parts: Sequence[Part]) -> tuple[list[int], list[int]]:
    """Where each part starts and stops, in bytes."""
    starts, stops, characters, size = [], [], 0, 0
    for part in parts:
        size += len(text[characters : part.start].encode())
        starts.append(size)
        size += len(text[part.start : part.stop].encode())
        stops.append(size)
        characters = part.stop
    return starts, stops


def _filled(
    stops: Sequence[int | None], begins: Sequence[int | None], num_tokens: int
) -> list[int]:
    """Stops for all: of a piece that was not found, where the next that was begins."""
    filled: list[int] = []
    following = num_tokens
    for stop, begin in zip(reversed(stops), reversed(begins), strict=True):
        filled.append(following if stop is None else stop)
        following = filled[-1] if begin is None else begin
    filled.reverse()
    return list(accumulate(filled, max))
