"""A prompt cut into its pieces, each named by its content, with tokens shared out over the text.

    weight   0 ───────────── w ──────────────── W      estimated from the text alone
    tokens   0 ───────────── t ──────────────── T      what the provider counted

Two prompts with a common beginning must count it alike, or no cache could be imagined over both.
So the later one takes the earlier one's scale for what they share and spreads what the provider
counted beyond that over its own rest.
"""

import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from kvikk.audit.sketch import sketch
from kvikk.wire.segments import Marker, Section, Segment

# Characters a token of English, code and JSON, roughly; only proportions matter where the
# provider's count is known.
_CHARACTERS_PER_TOKEN = 3.7
_IMAGE_TOKENS = 1200.0
_NEAR = 0.2
_NEARLY_ALL = 0.98
_BASE64 = re.compile(r"[A-Za-z0-9+/=_-]{512,}")


@dataclass(frozen=True)
class Piece:
    """What a provider renders of one segment. Equal digests mean equal bytes, role and kind."""

    kind: str
    role: str
    text: str
    digest: bytes

    @cached_property
    def weight(self) -> float:
        """Tokens, estimated. A picture's bytes are no text."""
        if self.kind in ("image", "file"):
            return _IMAGE_TOKENS
        if self.kind == "tool_result" and len(self.text) > 512:
            shown, pictures = _BASE64.subn("", self.text)
            return len(shown) / _CHARACTERS_PER_TOKEN + pictures * _IMAGE_TOKENS
        return max(1, len(self.text)) / _CHARACTERS_PER_TOKEN

    def head(self, num_characters: int) -> bytes:
        """The digest of so many characters from its start on; cheapest in ascending order."""
        known = self._heads.get(num_characters)
        if known is None:
            at, naming = self._reached
            if num_characters < at:
                at, naming = 0, hashlib.blake2b(digest_size=16)
            else:
                naming = naming.copy()
            naming.update(self.text[at:num_characters].encode("utf-8", "surrogatepass"))
            self.__dict__["_reached"] = (num_characters, naming)
            known = self._heads[num_characters] = naming.digest()
        return known

    @cached_property
    def _heads(self) -> dict[int, bytes]:
        return {}

    @cached_property
    def _reached(self) -> "tuple[int, hashlib.blake2b]":
        return 0, hashlib.blake2b(digest_size=16)

    @cached_property
    def sketch(self) -> frozenset[int]:
        """A sample of what stands in it, to find it again when a part of it has changed."""
        return sketch(self.text)


class Pieces:
    """Pieces by what stands in them, so that a text that comes again is not named again."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, str], Piece] = {}

    def of(self, segment: Segment) -> Piece:
        """The piece of a segment: a kept one if there is an equal one."""
        known = self._kept.get((segment.text, segment.kind, segment.role))
        return _piece(segment) if known is None else known

    def keep(self, piece: Piece) -> None:
        """Find ``piece`` from now on."""
        self._kept[piece.text, piece.kind, piece.role] = piece

    def drop(self, piece: Piece) -> None:
        """Find it no longer."""
        self._kept.pop((piece.text, piece.kind, piece.role), None)


@dataclass(frozen=True, slots=True)
class Slot:
    """A piece at its place in one request."""

    piece: Piece
    path: str
    section: Section
    message: int | None
    starts_message: bool
    ends_message: bool
    marker: Marker | None

    @property
    def role(self) -> str:
        """Whose words they are."""
        return self.piece.role

    @property
    def kind(self) -> str:
        """What they are."""
        return self.piece.kind


@dataclass(frozen=True, slots=True)
class Scale:
    """Weight to tokens, by straight lines between ``points``; both ascend from zero."""

    points: tuple[tuple[float, float], ...]

    def tokens(self, weight: float) -> float:
        """Tokens in front of ``weight``."""
        return self._between(weight, 0, 1)

    def weight(self, tokens: float) -> float:
        """The weight at which ``tokens`` have passed."""
        return self._between(tokens, 1, 0)

    def up_to(self, weight: float) -> tuple[tuple[float, float], ...]:
        """The points up to ``weight``, and that one."""
        before = tuple(point for point in self.points if point[0] < weight)
        return (*before, (weight, self.tokens(weight)))

    def _between(self, value: float, given: int, wanted: int) -> float:
        index = bisect_right(self.points, value, key=lambda point: point[given])
        if index == len(self.points):
            return self.points[-1][wanted]
        low, high = self.points[index - 1], self.points[index]
        share = (value - low[given]) / (high[given] - low[given])
        return low[wanted] + share * (high[wanted] - low[wanted])


@dataclass(frozen=True)
class Prompt:
    """All pieces of one request in rendering order.

    ``chain[i]`` names everything up to the end of piece i, ``ends[i]`` is the weight there.
    """

    slots: tuple[Slot, ...]
    chain: tuple[bytes, ...]
    ends: tuple[float, ...]
    scale: Scale = field(default=Scale(((0.0, 0.0), (1.0, 1.0))))

    @property
    def total_weight(self) -> float:
        """The weight of all of it."""
        return self.ends[-1] if self.ends else 0.0

    @cached_property
    def digests(self) -> frozenset[bytes]:
        """The names of its pieces."""
        return frozenset(slot.piece.digest for slot in self.slots)

    @cached_property
    def num_tokens(self) -> int:
        """The tokens of all of it."""
        return round(self.scale.points[-1][1])

    def start(self, index: int) -> float:
        """The weight in front of piece ``index``."""
        return self.ends[index - 1] if index else 0.0

    def at(self, index: int, character: int) -> float:
        """The weight in front of a character of piece ``index``."""
        if index >= len(self.slots):
            return self.total_weight
        text = self.slots[index].piece.text
        share = min(1.0, character / len(text)) if text else 0.0
        return self.start(index) + share * self.slots[index].piece.weight

    def tokens_at(self, weight: float) -> int:
        """Whole tokens in front of ``weight``."""
        return min(self.num_tokens, round(self.scale.tokens(weight)))


def pieces(segments: Iterable[Segment], known: Pieces | None = None) -> Prompt:
    """A prompt without token counts; pieces that ``known`` keeps are taken from there."""
    piece_of = _piece if known is None else known.of
    slots: list[Slot] = []
    chain: list[bytes] = []
    ends: list[float] = []
    name, weight = b"", 0.0
    last: tuple[Section, int | None] | None = None
    for segment in segments:
        place = (segment.section, segment.message)
        starts = place != last and segment.section != "tools"
        piece, last = piece_of(segment), place
        name = hashlib.blake2b(name + piece.digest + bytes([starts]), digest_size=16).digest()
        weight += piece.weight
        chain.append(name)
        ends.append(weight)
        slots.append(
            Slot(
                piece,
                segment.path,
                segment.section,
                segment.message,
                starts,
                segment.ends_message,
                segment.marker,
            )
        )
    return Prompt(tuple(slots), tuple(chain), tuple(ends))


def counted(
    prompt: Prompt, input_tokens: int | None, earlier: Prompt | None = None, shared: float = 0.0
) -> Prompt:
    """``prompt`` with the provider's count shared out over it, estimated where it is None.

    ``shared`` is the weight that it has in common with ``earlier``, whose scale it takes there.
    """
    total = prompt.total_weight
    if not total:
        return prompt
    known: tuple[tuple[float, float], ...] = ((0.0, 0.0),)
    rate = 1.0
    if earlier is not None and earlier.total_weight:
        rate = earlier.scale.points[-1][1] / earlier.total_weight
        if shared > 0.0:
            known = earlier.scale.up_to(min(shared, total))
    rest = total - known[-1][0]
    counted_tokens = known[-1][1] + rest * rate if input_tokens is None else float(input_tokens)
    if rest <= 0 and counted_tokens != known[-1][1] and earlier is not None:
        # The same text was counted otherwise, as hidden words of a template may be: at its end.
        known, rest = earlier.scale.up_to(_NEARLY_ALL * total), (1 - _NEARLY_ALL) * total
    if counted_tokens < known[-1][1] or (rest <= 0 and counted_tokens != known[-1][1]):
        known, rest = ((0.0, 0.0),), total  # the two counts cannot both be of the same beginning
    points = known if rest <= 0 else (*known, (total, counted_tokens))
    return Prompt(prompt.slots, prompt.chain, prompt.ends, Scale(points))


def anchored(prompt: Prompt, weights: Sequence[float], tokens: int) -> Prompt:
    """``prompt`` with the nearest of ``weights`` put at ``tokens``, if one is near at all.

    Estimates go wrong where there are pictures; a place with a known count puts them right.
    """
    total = prompt.total_weight
    likely = tokens / max(1, prompt.num_tokens) * total
    nearest = min(weights, key=lambda weight: abs(weight - likely), default=0.0)
    if not 0 < nearest < total or tokens >= prompt.num_tokens:
        return prompt
    if abs(nearest - likely) > _NEAR * likely:
        return prompt
    points = ((0.0, 0.0), (nearest, float(tokens)), (total, float(prompt.num_tokens)))
    return Prompt(prompt.slots, prompt.chain, prompt.ends, Scale(points))


def _piece(segment: Segment) -> Piece:
    naming = hashlib.blake2b(digest_size=16)
    naming.update(f"{segment.kind}\0{segment.role}\0".encode())
    naming.update(segment.text.encode("utf-8", "surrogatepass"))
    return Piece(segment.kind, segment.role, segment.text, naming.digest())
