"""Why a common beginning could not be cut where it ends: markers and boundaries.

earlier   [ stable · · · · · ·][ varies ]M      written at M, behind what varies
later     [ stable · · · · · ·][ VARIES ]M      nothing ends where stable does
"""

from dataclasses import dataclass

from kvikk.audit.pair import Pair
from kvikk.audit.prompt import Prompt
from kvikk.pricing.boundaries import steps_back
from kvikk.pricing.caching import Breakpoints, MessageEnds, Units
from kvikk.pricing.decision import Reason
from kvikk.pricing.prompt import Position


@dataclass(frozen=True, slots=True)
class Boundary:
    """The class, the place and a word on it."""

    cause: str
    path: str
    note: str = ""


def changed_boundary(pair: Pair) -> Boundary | None:
    """What is wrong with markers and boundaries; None if the rules would have read all."""
    if pair.shared - max(pair.hit, pair.decision.read_tokens) < pair.slack:
        return None
    match pair.rules.caching.scheme:
        case Breakpoints() as scheme:
            return _breakpoints(pair, scheme)
        case MessageEnds() as scheme:
            return _message_ends(pair, scheme)
        case Units():
            return _units(pair)
        case _:
            return None


def longest_piece(prompt: Prompt, tokens: int) -> str:
    """The path of the heaviest piece in the first ``tokens``: what one would lengthen."""
    if not prompt.slots:
        return "$"
    inside = [
        index
        for index in range(len(prompt.slots))
        if index == 0 or prompt.tokens_at(prompt.start(index)) < tokens
    ]
    return prompt.slots[max(inside, key=lambda index: prompt.slots[index].piece.weight)].path


def markers(prompt: Prompt, up_to: int | None = None) -> list[int]:
    """Indices of the marked pieces."""
    return [index for index, slot in enumerate(prompt.slots[:up_to]) if slot.marker is not None]


def _breakpoints(pair: Pair, scheme: Breakpoints) -> Boundary | None:
    ours, theirs = markers(pair.prompt), markers(pair.earlier.prompt)
    place = pair.place.index
    if not ours:
        return Boundary("breakpoint.missing", _unmarked(pair), "no piece carries a marker")
    written = [index for index in theirs if index < place]
    behind = [index for index in theirs if index >= place]
    overlooked = any(span.reason == Reason.LOOKBACK for span in pair.decision.spans)
    if overlooked or _out_of_reach(pair, scheme, written, ours):
        last = pair.prompt.slots[ours[-1]]
        path = last.path if last.marker is None else last.marker.path
        note = f"more than {scheme.lookback} positions behind the last entry"
        return Boundary("breakpoint.lookback_overflow", path, note)
    if behind or (place < len(pair.prompt.slots) and not written and ours[-1] >= place):
        path = _path_at(pair)
        if not theirs:
            return Boundary("breakpoint.missing", _unmarked(pair), "nothing was written before")
        return Boundary("breakpoint.on_volatile_block", path, "the marker stands behind it")
    if not theirs:
        return Boundary("breakpoint.missing", _unmarked(pair), "nothing was written before")
    marker = pair.prompt.slots[ours[-1]].marker
    path = "$" if marker is None else marker.path
    return Boundary("breakpoint.placement", path, "what follows the last marker is never kept")


def _out_of_reach(pair: Pair, scheme: Breakpoints, written: list[int], ours: list[int]) -> bool:
    """Whether an entry at one of ``written`` lies too far in front of each of our markers."""
    positions = tuple(Position(1, b"", slot.section, slot.kind) for slot in pair.prompt.slots)
    read = pair.decision.read_tokens
    for entry in reversed(written):
        tokens = pair.prompt.tokens_at(pair.prompt.ends[entry])
        if tokens < pair.rules.caching.minimum_tokens or tokens <= read + pair.slack:
            continue
        later = [marker for marker in ours if marker >= entry]
        if later and all(
            counted > scheme.lookback
            for marker in later
            for index, counted in steps_back(positions, marker)
            if index == entry
        ):
            return True
    return False


def _message_ends(pair: Pair, scheme: MessageEnds) -> Boundary | None:
    body = pair.exchange.seen
    options = body.get("prompt_cache_options")
    explicit = isinstance(options, dict) and options.get("mode") == "explicit"
    ours = markers(pair.prompt)
    if explicit and not ours:
        note = "explicit mode, and no part carries a marker"
        return Boundary("breakpoint.missing", "$.prompt_cache_options.mode", note)
    if len(ours) > scheme.write_slots:
        marker = pair.prompt.slots[ours[0]].marker
        path = "$" if marker is None else marker.path
        note = f"{len(ours)} markers; the oldest are dropped beyond {scheme.write_slots}"
        return Boundary("breakpoint.too_many", path, note)
    if _end_moved(pair):
        note = "the old end is no end of a message any more"
        return Boundary("breakpoint.implicit_boundary_moved", _path_at(pair), note)
    if explicit:
        cause = (
            "breakpoint.on_volatile_block"
            if ours[-1] >= pair.place.index
            else ("breakpoint.placement")
        )
        return Boundary(cause, _path_at(pair))
    note = "fixed text inside of a message that varies ends at no boundary"
    return Boundary("breakpoint.placement", _path_at(pair), note)


def _end_moved(pair: Pair) -> bool:
    """Whether the earlier prompt ended, as a message, where the later one's message goes on."""
    index = pair.place.index
    before, after = pair.earlier.prompt.slots, pair.prompt.slots
    if index < len(before) and index < len(after) and pair.place.character:
        return pair.place.character >= len(before[index].piece.text)
    goes_on = index < len(after) and not after[index].starts_message
    ended = index >= len(before) or before[index].starts_message
    if goes_on and ended:
        return True
    in_run = index < len(after) and after[index].kind == "tool_result"
    return ended and in_run and bool(index) and after[index - 1].kind == "tool_result"


def _units(pair: Pair) -> Boundary | None:
    """A unit is made of what two requests had in common, once they had it."""
    if pair.seen_before > 1:
        return None
    return Boundary("expected.common_prefix_detection", _path_at(pair))


def _unmarked(pair: Pair) -> str:
    """Where a marker belongs: on the last fixed piece, of the instructions where there are any."""
    fixed = pair.prompt.slots[: pair.place.index] or pair.prompt.slots[:1]
    instructions = [slot for slot in fixed if slot.section == "system"]
    slot = (instructions or list(fixed))[-1]
    if slot.path.endswith(".text"):
        return f"{slot.path.removesuffix('.text')}.cache_control"
    return f"{slot.path}.cache_control" if slot.path.endswith("]") else slot.path


def _path_at(pair: Pair) -> str:
    """The piece in which the two prompts begin to differ."""
    slots = pair.prompt.slots
    return slots[min(pair.place.index, len(slots) - 1)].path if slots else "$"
