"""Where in one prompt a provider's cache may be read, and where it will be written.

A point is a prefix: so many tokens, a digest of them, and the section it ends in, which says what
else must be equal. All functions are pure; nothing is known here of what any cache holds.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvikk.pricing.caching import Breakpoints, Caching, MessageEnds, Steps, Units
from kvikk.pricing.prompt import Position, ProviderPrompt, Section

_INITIAL_ROLES = ("system", "developer")
_RUNS = ("tool_use", "tool_result")


@dataclass(frozen=True, slots=True)
class Point:
    """The prefix of ``num_tokens``; ``lifetime`` is what it is written with, if it is."""

    num_tokens: int
    digest: bytes
    section: Section
    lifetime: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Points of one prompt, all at or above the minimum and each list in ascending order.

    ``out_of_reach`` are places where an entry may lie that no marker looks back to.
    ``below_minimum`` says that there would be points to write if they were further from the start.
    """

    readable: tuple[Point, ...]
    writable: tuple[Point, ...]
    out_of_reach: tuple[Point, ...] = ()
    below_minimum: bool = False


def plan(caching: Caching, prompt: ProviderPrompt) -> Plan:
    """The points of ``prompt`` under these rules."""
    match caching.scheme:
        case Steps() as scheme:
            return _steps(caching, scheme, prompt)
        case MessageEnds() as scheme:
            return _message_ends(caching, scheme, prompt)
        case Breakpoints() as scheme:
            return _breakpoints(caching, scheme, prompt)
        case Units() as scheme:
            return _units(caching, scheme, prompt)


def steps_back(positions: tuple[Position, ...], marker: int) -> Iterator[tuple[int, int]]:
    """From a marker backwards: each position's index, and how many positions that is, from 1.

    A run of tool uses is one, and so is a run of tool results.
    """
    counted = 0
    for index in range(marker, -1, -1):
        kind = positions[index].kind
        in_run = index < marker and kind in _RUNS and positions[index + 1].kind == kind
        counted += 0 if in_run else 1
        yield index, counted


class _Ends:
    """Where the positions of a prompt end, as points."""

    def __init__(self, caching: Caching, prompt: ProviderPrompt) -> None:
        self._caching = caching
        self._prompt = prompt
        self.stops = []
        stop = 0
        for position in prompt.positions:
            stop += position.num_tokens
            self.stops.append(stop)

    def point(self, index: int, ttl: str = "") -> Point:
        position, stop = self._prompt.positions[index], self.stops[index]
        lifetime = self._caching.lifetime_name(ttl or self._prompt.lifetime)
        return Point(stop, position.digest, position.section, lifetime)

    def enough(self, indices: Iterable[int]) -> list[int]:
        """Those that are at or above the minimum."""
        return [index for index in indices if self.stops[index] >= self._caching.minimum_tokens]


def _steps(caching: Caching, scheme: Steps, prompt: ProviderPrompt) -> Plan:
    lifetime = caching.lifetime_name(prompt.lifetime)
    digest_at = prompt.digest_at or _digests_of_positions(caching, scheme, prompt).get
    first = scheme.step_tokens - scheme.hidden_tokens
    points = [
        Point(tokens, digest, "messages", lifetime)
        for tokens in range(first, prompt.num_tokens + 1, scheme.step_tokens)
        if tokens >= max(1, caching.minimum_tokens) and (digest := digest_at(tokens)) is not None
    ]
    return Plan(tuple(points), tuple(points), below_minimum=not points)


def _digests_of_positions(
    caching: Caching, scheme: Steps, prompt: ProviderPrompt
) -> dict[int, bytes]:
    """For whom no place inside a piece can be named: each piece stands for the last step in it.

    Two prompts then share a step only if all of the piece that the step lies in is equal.
    """
    digests: dict[int, bytes] = {}
    for position, stop in zip(prompt.positions, _Ends(caching, prompt).stops, strict=True):
        steps = (stop + scheme.hidden_tokens) // scheme.step_tokens
        digests.setdefault(steps * scheme.step_tokens - scheme.hidden_tokens, position.digest)
    return digests


def _message_ends(caching: Caching, scheme: MessageEnds, prompt: ProviderPrompt) -> Plan:
    ends = _Ends(caching, prompt)
    positions = prompt.positions
    # Nothing that an assistant said can carry a marker; it is ignored there.
    explicit = [
        index
        for index, position in enumerate(positions)
        if position.marker is not None and position.role != "assistant"
    ]
    implicit = [] if prompt.explicit else sorted(set(_implicit_ends(positions)))
    slots = scheme.write_slots - bool(implicit)
    written = sorted({*implicit, *explicit[-slots:]})
    message_ends = [index for index, position in enumerate(positions) if position.ends_message]
    matched = sorted({*explicit, *implicit, *(() if prompt.explicit else message_ends)})[
        -scheme.matched :
    ]
    writable = [ends.point(index, _ttl(positions[index])) for index in ends.enough(written)]
    return Plan(
        tuple(ends.point(index) for index in ends.enough(matched)),
        tuple(writable),
        below_minimum=bool(written) and not writable,
    )


def _ttl(position: Position) -> str:
    return "" if position.marker is None else position.marker.ttl


def _implicit_ends(positions: tuple[Position, ...]) -> Iterator[int]:
    """Ends of the initial run's last instructions, the newest user message, each run of results."""
    initial = newest = None
    for index, position in enumerate(positions):
        if position.section != "tools" and position.role not in _INITIAL_ROLES:
            break
        if position.section != "tools" and position.ends_message:
            initial = index
    for index, position in enumerate(positions):
        if position.role == "user" and position.kind != "tool_result" and position.ends_message:
            newest = index
    if initial is not None:
        yield initial
    if newest is not None:
        yield newest
    for index, position in enumerate(positions):
        following = positions[index + 1].kind if index + 1 < len(positions) else ""
        if position.kind == "tool_result" and following != "tool_result":
            yield index


def _breakpoints(caching: Caching, scheme: Breakpoints, prompt: ProviderPrompt) -> Plan:
    ends = _Ends(caching, prompt)
    markers = [
        index for index, position in enumerate(prompt.positions) if position.marker is not None
    ]
    within: set[int] = set()
    for marker in markers:
        within |= {
            index
            for index, counted in steps_back(prompt.positions, marker)
            if counted <= scheme.lookback
        }
    beyond = set(range(max(markers, default=-1) + 1)) - within
    writable = ends.enough(markers)
    return Plan(
        tuple(ends.point(index) for index in ends.enough(sorted(within))),
        tuple(ends.point(index, _ttl(prompt.positions[index])) for index in writable),
        tuple(ends.point(index) for index in ends.enough(sorted(beyond))),
        below_minimum=bool(markers) and not writable,
    )


def _units(caching: Caching, scheme: Units, prompt: ProviderPrompt) -> Plan:
    ends = _Ends(caching, prompt)
    lifetime = caching.lifetime_name(prompt.lifetime)
    points = {ends.stops[index]: ends.point(index) for index in ends.enough(range(len(ends.stops)))}
    if prompt.digest_at is not None:
        for tokens in range(scheme.unit_tokens, prompt.num_tokens + 1, scheme.unit_tokens):
            if tokens >= caching.minimum_tokens:
                digest = prompt.digest_at(tokens)
                points[tokens] = Point(tokens, digest, "messages", lifetime)
    readable = tuple(points[tokens] for tokens in sorted(points))
    return Plan(readable, readable[-1:], below_minimum=not readable)
