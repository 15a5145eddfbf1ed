"""What paging saves: one trace of conversations through three allocators of the same memory.

The simple allocator gives each conversation one contiguous slab, since attention then reads plain
arrays; nobody knows how long an answer will be, so the slab is for the longest one. Two sizes of
slab are replayed: the prompt and the longest answer, first fit; and the whole context, where slabs
are all alike. Blocks are taken one by one as a conversation reaches them.

Nothing is shared between conversations and nobody waits: who finds no room is refused, as by a
server without a queue. A prompt is held from its arrival on, an answer grows by a token every
``token_s`` seconds.
"""

import heapq
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Protocol

from kvikk.errors import ModelError


@dataclass(frozen=True)
class Conversation:
    """When it arrives, and how many tokens it reads and writes."""

    arrival_s: float
    prompt_tokens: int
    answer_tokens: int

    @property
    def total_tokens(self) -> int:
        """What it holds in the end."""
        return self.prompt_tokens + self.answer_tokens

    def held_tokens(self, now_s: float, token_s: float) -> int:
        """What it holds at ``now_s``, writing a token every ``token_s``."""
        written = int((now_s - self.arrival_s) / token_s)
        return self.prompt_tokens + min(written, self.answer_tokens)


@dataclass(frozen=True)
class AllocatorResult:
    """How one allocator did. Shares are of all memory, averaged over the moments of refusal; None
    where nobody was refused.

    ``held_share`` holds keys and values; ``inside_share`` is reserved by somebody and empty;
    ``free_share`` is nobody's. ``refused`` found no room on arrival, ``cut_off`` none for the next
    block of an answer. Of the refused, ``free_sufficed`` would have fitted had the free memory been
    in one piece, and ``unused_sufficed`` had what others reserved and did not use been theirs.
    """

    name: str
    served: int
    refused: int
    cut_off: int
    free_sufficed: int
    unused_sufficed: int
    held_share: float | None
    inside_share: float | None
    free_share: float | None


def read_trace(path: Path) -> tuple[Conversation, ...]:
    """Conversations of a Mooncake trace: ``timestamp`` (ms), ``input_length``, ``output_length``.

    Raises ModelError, naming the line, for anything else.
    """
    conversations = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    row = json.loads(line)
                    conversation = Conversation(
                        float(row["timestamp"]) / 1000,
                        int(row["input_length"]),
                        int(row["output_length"]),
                    )
                except (ValueError, KeyError, TypeError, RecursionError):
                    raise ModelError(
                        f"{path}, line {number}: not a request with timestamp, input_length and "
                        "output_length"
                    ) from None
                conversations.append(conversation)
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: cannot be read as a trace: {error}") from None
    if not conversations:
        raise ModelError(f"{path}: an empty trace")
    return tuple(sorted(conversations, key=lambda conversation: conversation.arrival_s))


class Allocator(Protocol):
    """Room for conversations, in tokens."""

    free_tokens: int

    def wanted_tokens(self, conversation: Conversation) -> int:
        """What it takes for a conversation as it arrives."""

    def admit(self, conversation: Conversation) -> object | None:
        """Room for a conversation as it arrives; None if there is none, and nothing changes."""

    def grow(self, room: object, num_tokens: int) -> bool:
        """Room for it when it holds ``num_tokens``; False if there is none."""

    def free(self, room: object) -> None:
        """Give all of it back."""


@dataclass
class Slabs:
    """Contiguous slabs of ``slab_tokens(conversation)``, first fit. Holes are kept in order."""

    capacity_tokens: int
    slab_tokens: Callable[[Conversation], int]

    def __post_init__(self) -> None:
        self.free_tokens = self.capacity_tokens
        self._holes = [(0, self.capacity_tokens)]  # (start, length), never adjacent

    def wanted_tokens(self, conversation: Conversation) -> int:
        """One slab."""
        return self.slab_tokens(conversation)

    def admit(self, conversation: Conversation) -> tuple[int, int] | None:
        """The first hole that is large enough."""
        wanted = self.slab_tokens(conversation)
        for index, (start, length) in enumerate(self._holes):
            if length >= wanted:
                rest = [(start + wanted, length - wanted)] if length > wanted else []
                self._holes[index : index + 1] = rest
                self.free_tokens -= wanted
                return start, wanted
        return None

    def grow(self, room: object, num_tokens: int) -> bool:
        """Always: the slab was made for the longest answer."""
        return True

    def free(self, room: object) -> None:
        """Merge the slab with the holes beside it."""
        assert isinstance(room, tuple)
        start, length = room
        self.free_tokens += length
        holes: list[tuple[int, int]] = []
        for hole in sorted([*self._holes, (start, length)]):
            if holes and holes[-1][0] + holes[-1][1] == hole[0]:
                holes[-1] = (holes[-1][0], holes[-1][1] + hole[1])
            else:
                holes.append(hole)
        self._holes = holes


@dataclass
class Blocks:
    """Blocks of ``block_size`` tokens: any free one serves anybody."""

    capacity_tokens: int
    block_size: int

    def __post_init__(self) -> None:
        self.free_tokens = self.capacity_tokens // self.block_size * self.block_size

    def wanted_tokens(self, conversation: Conversation) -> int:
        """The prompt's blocks."""
        return -(-conversation.prompt_tokens // self.block_size) * self.block_size

    def admit(self, conversation: Conversation) -> list[int] | None:
        """Blocks for the prompt."""
        room = [0]
        return room if self.grow(room, conversation.prompt_tokens) else None

    def grow(self, room: object, num_tokens: int) -> bool:
        """Blocks for ``num_tokens`` in all."""
        assert isinstance(room, list)
        more = -(-num_tokens // self.block_size) - room[0]
        if more * self.block_size > self.free_tokens:
            return False
        room[0] += more
        self.free_tokens -= more * self.block_size
        return True

    def free(self, room: object) -> None:
        """All of its blocks."""
        assert isinstance(room, list)
        self.free_tokens += room[0] * self.block_size


class _Replay:
    """The state of one replay: who lives, what happens next, what was seen."""

    def __init__(
        self, allocator: Allocator, capacity_tokens: int, token_s: float, step_tokens: int
    ) -> None:
        self.allocator, self.capacity_tokens = allocator, capacity_tokens
        self.token_s, self.step_tokens = token_s, step_tokens
        self.live: dict[int, tuple[Conversation, object]] = {}
        self.events: list[tuple[float, int, int]] = []  # when, who, tokens it then holds
        self.served = self.refused = self.cut_off = 0
        self.free_sufficed = self.unused_sufficed = 0
        self.samples: list[tuple[float, float]] = []  # held and free, of all memory

    def run_until(self, now_s: float) -> None:
        """Let answers grow and end until ``now_s``."""
        while self.events and self.events[0][0] <= now_s:
            _, who, num_tokens = heapq.heappop(self.events)
            conversation, room = self.live[who]
            if num_tokens < conversation.total_tokens:
                if self.allocator.grow(room, num_tokens + 1):
                    self.expect(who, conversation, num_tokens + self.step_tokens)
                    continue
                self.cut_off += 1
            else:
                self.served += 1
            del self.live[who]
            self.allocator.free(room)

    def expect(self, who: int, conversation: Conversation, num_tokens: int) -> None:
        """Note when it will hold ``num_tokens``, or all of its tokens if these are fewer."""
        num_tokens = min(num_tokens, conversation.total_tokens)
        written = num_tokens - conversation.prompt_tokens
        heapq.heappush(
            self.events, (conversation.arrival_s + written * self.token_s, who, num_tokens)
        )

    def arrive(self, who: int, conversation: Conversation) -> None:
        """Admit it or refuse it."""
        room = self.allocator.admit(conversation)
        if room is not None:
            self.live[who] = (conversation, room)
            in_whole_steps = -(-conversation.prompt_tokens // self.step_tokens) * self.step_tokens
            self.expect(who, conversation, in_whole_steps)
            return
        self.refused += 1
        held = sum(
            one.held_tokens(conversation.arrival_s, self.token_s) for one, _ in self.live.values()
        )
        free = self.allocator.free_tokens
        self.free_sufficed += free >= self.allocator.wanted_tokens(conversation)
        self.unused_sufficed += self.capacity_tokens - held >= conversation.total_tokens
        self.samples.append((held / self.capacity_tokens, free / self.capacity_tokens))


def replay(
    name: str,
    allocator: Allocator,
    capacity_tokens: int,
    conversations: Sequence[Conversation],
    *,
    token_s: float,
    step_tokens: int,
) -> AllocatorResult:
    """Let ``conversations`` arrive in order, grow by ``step_tokens`` at a time, and leave."""
    state = _Replay(allocator, capacity_tokens, token_s, step_tokens)
    for who, conversation in enumerate(conversations):
        state.run_until(conversation.arrival_s)
        state.arrive(who, conversation)
    state.run_until(inf)
    held = fmean(share for share, _ in state.samples) if state.samples else None
    free = fmean(share for _, share in state.samples) if state.samples else None
    return AllocatorResult(
        name,
        served=state.served,
        refused=state.refused,
        cut_off=state.cut_off,
        free_sufficed=state.free_sufficed,
        unused_sufficed=state.unused_sufficed,
        held_share=held,
        inside_share=None if held is None or free is None else 1 - held - free,
        free_share=free,
    )


def compare_allocators(
    conversations: Sequence[Conversation],
    capacity_tokens: int,
    *,
    context_tokens: int,
    block_size: int = 32,
    token_s: float = 0.03,
) -> tuple[AllocatorResult, ...]:
    """Slabs of a whole context, slabs for the longest answer, and blocks, on the same trace.

    The longest answer is the trace's own. Conversations of more than ``context_tokens`` are left
    out everywhere.
    """
    fitting = [one for one in conversations if one.total_tokens <= context_tokens]
    if not fitting:
        raise ModelError(f"no conversation of the trace fits into {context_tokens:,} tokens")
    longest_answer = max(one.answer_tokens for one in fitting)
    allocators: dict[str, Allocator] = {
        "slab of the whole context": Slabs(capacity_tokens, lambda one: context_tokens),
        "slab for the longest answer": Slabs(
            capacity_tokens, lambda one: min(one.prompt_tokens + longest_answer, context_tokens)
        ),
        f"blocks of {block_size}": Blocks(capacity_tokens, block_size),
    }
    return tuple(
        replay(name, allocator, capacity_tokens, fitting, token_s=token_s, step_tokens=block_size)
        for name, allocator in allocators.items()
    )
