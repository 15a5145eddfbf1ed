"""The live feed as it comes over the wire, put together again into what a server is doing.

The first event of ``GET /v1/kvikk/live`` says everything, those after it what has changed: runs of
blocks that are in another state, and requests that came, went on or ended.
"""

from collections import Counter, deque
from dataclasses import dataclass

from kvikk.wire.ledger import LedgerSpan
from kvikk.wire.reading import JsonValue

STATES = ("empty", "cached", "live", "shared")  # as they are ranked: a cell shows its highest
_KEPT_REQUESTS = 60
_SPEED_S = 2.0
_MOST_BLOCKS = 1 << 26


@dataclass(frozen=True)
class LiveRequest:
    """One request; ``state`` is running, waiting (it was preempted) or ended."""

    id: str
    conversation: str
    state: str
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int | None
    spans: tuple[LedgerSpan, ...]

    @classmethod
    def from_json(cls, value: JsonValue) -> "LiveRequest":
        """Read a request. Raises RequestError, naming the path, for what is none."""
        generated = value.get("generated_tokens")
        return cls(
            value.get("id").string(),
            value.get("conversation").string(),
            value.get("state").string(),
            value.get("prompt_tokens").integer(1),
            value.get("cached_tokens").integer(0),
            None if generated.is_null else generated.integer(0),
            tuple(
                LedgerSpan(
                    span.get("start").integer(0),
                    span.get("stop").integer(1),
                    span.get("cause").string(),
                )
                for span in value.get("spans").items()
            ),
        )


@dataclass(frozen=True)
class LiveEngine:
    """Figures of one moment, and totals since the start."""

    running_requests: int
    waiting_requests: int
    preemptions: int
    generated_tokens: int
    computed_tokens: int
    block_size: int

    @classmethod
    def from_json(cls, value: JsonValue) -> "LiveEngine":
        """Read the figures. Raises RequestError, naming the path, for what are none."""
        return cls(*(value.get(name).integer(0) for name in cls.__dataclass_fields__))


class LiveView:
    """What a server is doing, as far as the events told so far.

    ``groups`` have an index into ``STATES`` for each block. ``engine`` is None and ``groups`` are
    empty where the reader is one tenant of several.
    """

    def __init__(self) -> None:
        self.at_s = 0.0
        self.engine: LiveEngine | None = None
        self.groups: list[bytearray] = []
        self.requests: dict[str, LiveRequest] = {}
        self._pace: deque[tuple[float, LiveEngine]] = deque()

    def hear(self, event: JsonValue) -> None:
        """Take in an event. Raises RequestError, naming the path, for what is none."""
        self.at_s = event.get("at").number(0, 1e12)
        for value in event.get("requests").items():
            request = LiveRequest.from_json(value)
            self.requests[request.id] = request
        while len(self.requests) > _KEPT_REQUESTS:
            del self.requests[next(iter(self.requests))]
        if event.get("engine").is_null:
            return
        self.engine = LiveEngine.from_json(event.get("engine"))
        for index, group in enumerate(event.get("groups").items()):
            self._change(index, group)
        self._pace.append((self.at_s, self.engine))
        while len(self._pace) > 1 and self._pace[1][0] <= self.at_s - _SPEED_S:
            self._pace.popleft()

    def _change(self, index: int, group: JsonValue) -> None:
        total = group.get("total_blocks").integer(0, _MOST_BLOCKS)
        if index == len(self.groups):
            self.groups.append(bytearray(total))
        for run in group.get("runs").items():
            if len(run.elements()) != 3:
                run.fail("expected a start, a stop and a state")
            start, stop, state = run.items()
            first, last = start.integer(0, total), stop.integer(0, total)
            if state.string() not in STATES:
                state.fail(f"expected one of {', '.join(STATES)}")
            self.groups[index][first:last] = bytes([STATES.index(state.string())]) * (last - first)

    @property
    def blocks(self) -> dict[str, int]:
        """Blocks by state, all groups together."""
        counts = Counter[int]()
        for states in self.groups:
            counts.update(states)
        return {name: counts[state] for state, name in enumerate(STATES)}

    @property
    def tokens_per_s(self) -> float:
        """Tokens generated a second, lately."""
        if len(self._pace) < 2:
            return 0.0
        (then_s, then), (now_s, now) = self._pace[0], self._pace[-1]
        return (now.generated_tokens - then.generated_tokens) / max(now_s - then_s, 1e-3)
