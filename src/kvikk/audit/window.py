"""The requests of late, and which of them one should have shared with, in bounded memory.

Three ways lead from a request to an earlier one: the chain of its beginning, a piece that both
have wherever it stands, and a sample of what stands in a piece (see ``sketch``). Each remembers
the newest few requests only, so a text that thousands share costs no more than any other.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import nlargest

from kvikk.audit.exchange import Exchange
from kvikk.audit.prompt import Piece, Pieces, Prompt, Slot, pieces
from kvikk.audit.sketch import likeness
from kvikk.wire.segments import Segment

_MOST_REQUESTS = 4096
_MOST_BYTES = 256 << 20
_NEWEST = 8
_MOST_CANDIDATES = 16
_LEAST_WEIGHT = 8.0
_HEAVIEST = 16
_LEAST_LIKENESS = 0.2


_KEPT = ("model", "modelId", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention")


@dataclass(frozen=True, eq=False)
class Earlier:
    """A request that is remembered: of its bodies only what is no text, its text as ``prompt``.

    ``answer`` are the pieces of its response, as they would be sent back.
    """

    exchange: Exchange
    prompt: Prompt
    parameters: dict[str, object]
    answer: tuple[Slot, ...] = ()


def remembered(
    exchange: Exchange, prompt: Prompt, parameters: dict[str, object], answer: tuple[Slot, ...]
) -> Earlier:
    """What is kept of a request."""
    kept = {name: value for name, value in exchange.seen.items() if name in _KEPT}
    model = (exchange.response or {}).get("model")
    light = replace(
        exchange,
        api=exchange.seen_api,
        body=kept,
        upstream=None,
        response={"model": model} if model else None,
    )
    return Earlier(light, prompt, parameters, answer)


@dataclass(frozen=True, slots=True)
class Sibling:
    """An earlier request beside one: ``shared_weight`` of what they have in common anywhere."""

    earlier: Earlier
    shared_weight: float


class Window:
    """Remembers requests; the oldest go when there are too many or their texts take too much."""

    def __init__(self, most_requests: int = _MOST_REQUESTS, most_bytes: int = _MOST_BYTES) -> None:
        self._most_requests = most_requests
        self._most_bytes = most_bytes
        self._requests: deque[tuple[Earlier, list[Hashable]]] = deque()
        self._index: dict[Hashable, deque[Earlier]] = {}
        self._pieces: dict[bytes, tuple[Piece, int]] = {}
        self._named = Pieces()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def text_bytes(self) -> int:
        """How much text is held, each piece once."""
        return self._bytes

    @property
    def num_keys(self) -> int:
        """How many ways lead to a request that is remembered."""
        return len(self._index)

    def prompt(self, segments: Iterable[Segment]) -> Prompt:
        """A prompt without token counts; pieces that are remembered are the same objects again."""
        return pieces(segments, self._named)

    def add(self, earlier: Earlier) -> list[Earlier]:
        """Remember one; returns those that had to go."""
        keys = [*_chain_keys(earlier.prompt), *_piece_keys(earlier.prompt)]
        keys += self._sketch_keys(earlier.prompt)  # others have led to it since it was new
        for key in keys:
            self._index.setdefault(key, deque(maxlen=_NEWEST)).append(earlier)
        self._requests.append((earlier, keys))
        for slot in earlier.prompt.slots:
            piece, users = self._pieces.get(slot.piece.digest, (slot.piece, 0))
            self._pieces[slot.piece.digest] = (piece, users + 1)
            if not users:
                self._bytes += len(piece.text)
                self._named.keep(piece)
        gone = []
        while len(self._requests) > 1 and (
            len(self._requests) > self._most_requests or self._bytes > self._most_bytes
        ):
            gone.append(self._forget())
        return gone

    def siblings(self, exchange: Exchange, prompt: Prompt) -> list[Sibling]:
        """Earlier requests of the same API that share text, most text first, newest first."""
        found: dict[int, Sibling] = {}
        for earlier in self._candidates(exchange, prompt):
            if earlier.exchange.seen_api == exchange.seen_api and id(earlier) not in found:
                weight = _shared_weight(prompt, earlier.prompt)
                if weight > 0.0:
                    found[id(earlier)] = Sibling(earlier, weight)
        return sorted(
            found.values(),
            key=lambda one: (-one.shared_weight, -one.earlier.exchange.index),
        )

    def _candidates(self, exchange: Exchange, prompt: Prompt) -> Iterator[Earlier]:
        """Those with the longest common beginning; others only if it is not all of one of them."""
        whole = False
        for key in _chain_keys(prompt):
            if (held := self._index.get(key)) is not None:
                yield from reversed(held)
                whole = any(
                    earlier.prompt.chain[-1] == key and _is_alike(earlier.exchange, exchange)
                    for earlier in held
                )
                break
        if whole:
            return
        seen: set[int] = set()
        for key in (*_piece_keys(prompt), *self._sketch_keys(prompt)):
            held = self._index.get(key)
            fresh = [one for one in reversed(held or ()) if id(one) not in seen]
            seen.update(map(id, fresh))
            yield from fresh
            if len(seen) >= _MOST_CANDIDATES:
                return

    def _sketch_keys(self, prompt: Prompt) -> list[Hashable]:
        """Of pieces that are not remembered as they are."""
        return [
            number
            for slot in prompt.slots
            if slot.piece.digest not in self._pieces
            for number in slot.piece.sketch
        ]

    def _forget(self) -> Earlier:
        oldest, keys = self._requests.popleft()
        for key in keys:
            held = self._index.get(key)
            if held and held[0] is oldest:
                held.popleft()
                if not held:
                    del self._index[key]
        for slot in oldest.prompt.slots:
            piece, users = self._pieces[slot.piece.digest]
            if users == 1:
                del self._pieces[slot.piece.digest]
                self._named.drop(piece)
                self._bytes -= len(piece.text)
            else:
                self._pieces[slot.piece.digest] = (piece, users - 1)
        return oldest


def _chain_keys(prompt: Prompt) -> Iterator[Hashable]:
    """The longest beginning first."""
    yield from reversed(prompt.chain)


def _piece_keys(prompt: Prompt) -> list[Hashable]:
    """The heaviest piece first: the fewest others have it by chance."""
    heavy = (slot.piece for slot in prompt.slots if slot.piece.weight >= _LEAST_WEIGHT)
    return [("piece", piece.digest) for piece in nlargest(_HEAVIEST, heavy, key=_weight)]


def _is_alike(one: Exchange, other: Exchange) -> bool:
    """Whether one might read what the other wrote, for all that is no text."""
    return (one.model, one.account, one.host) == (other.model, other.account, other.host)


def _weight(piece: Piece) -> float:
    return piece.weight


def _shared_weight(prompt: Prompt, other: Prompt) -> float:
    theirs = other.digests
    shared, changed = 0.0, []
    for slot in prompt.slots:
        piece = slot.piece
        if piece.digest in theirs:
            shared += piece.weight
        elif piece.weight >= _LEAST_WEIGHT:
            changed.append(piece)
    if changed:
        ours = prompt.digests
        rest = [
            slot.piece
            for slot in other.slots
            if slot.piece.digest not in ours and slot.piece.weight >= _LEAST_WEIGHT
        ]
        changed = nlargest(_HEAVIEST // 2, changed, key=_weight)
        # Most pieces have nothing in common with any: those are looked at once, not with each.
        numbers = set().union(*(piece.sketch for piece in changed))
        alike = [
            piece
            for piece in nlargest(_HEAVIEST, rest, key=_weight)
            if not numbers.isdisjoint(piece.sketch)
        ]
        for piece in changed if alike else ():
            shared += piece.weight * _best_likeness(piece, alike)
    return shared


def _best_likeness(piece: Piece, others: Iterable[Piece]) -> float:
    best = max((likeness(piece.sketch, other.sketch) for other in others), default=0.0)
    return best if best >= _LEAST_LIKENESS else 0.0
