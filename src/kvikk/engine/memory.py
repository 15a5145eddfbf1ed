"""How much memory goes where, decided once, before anything is allocated.

    free memory = weights + activations + KV blocks + what is left alone

KV blocks get ``kv_memory_bytes``, or ``DEFAULT_SHARE`` of what is free once weights and activations
are taken. A group's part of it follows from what one conversation needs at an expected length:

    group             blocks a conversation of n tokens holds, at most
    full              ceil(n / block)
    window of w       the same, but never more than a span of w - 1 + step tokens touches: what a
                      step of prefill computes and what it looks back to

so that, at that length, all groups fill up together.
"""

from dataclasses import dataclass, replace

from kvikk.backends.base import Backend, MemoryUse, Plan
from kvikk.errors import ModelError
from kvikk.models.decoder import Decoder
from kvikk.shapes.blocks import most_blocks
from kvikk.shapes.quantities import format_bytes

DEFAULT_SHARE = 0.4
# The length at which groups shall fill up together. Longer conversations find the full groups
# small, shorter ones the window groups; this one is what chats with a document in them come to.
EXPECTED_CONTEXT_TOKENS = 4096
# Less than this for one conversation is not worth starting for.
MINIMAL_CONTEXT_TOKENS = 512


@dataclass(frozen=True)
class GroupMemory:
    """The blocks of one group. ``num_tokens`` is what they hold, of one layer group."""

    window_tokens: int | None
    num_layers: int
    num_blocks: int
    block_bytes: int
    num_tokens: int

    @property
    def total_bytes(self) -> int:
        """All blocks of the group."""
        return self.num_blocks * self.block_bytes


@dataclass(frozen=True)
class MemoryReport:
    """Where memory goes: what is printed before the first request.

    ``available_bytes`` is what was free at the start (None: unknown). ``max_context_tokens`` is
    what one conversation may reach: ``wanted_context_tokens``, the model's or the chosen limit, or
    what the blocks hold if that is less. ``conversations`` of that length fit at once: a fraction.
    """

    available_bytes: int | None
    weight_bytes: int
    activation_bytes: int
    groups: tuple[GroupMemory, ...]
    block_size: int
    kv_dtype: str
    max_context_tokens: int
    wanted_context_tokens: int
    conversations: float

    @property
    def kv_bytes(self) -> int:
        """All blocks of all groups."""
        return sum(group.total_bytes for group in self.groups)


def plan_memory(
    backend: Backend,
    decoder: Decoder,
    draft: Plan,
    *,
    kv_memory_bytes: int | None,
    available_bytes: int | None,
    max_running: int,
) -> tuple[Plan, MemoryReport]:
    """Fill in ``draft``'s numbers of blocks.

    ``draft.max_context_tokens`` is the context wished for; the plan's is what came of it. Raises
    ModelError, in one line, if not even one short conversation fits, or if more was asked for than
    is free.
    """
    use = backend.memory_use(decoder, draft)
    fixed_bytes = use.weight_bytes + use.activation_bytes
    spare_bytes = None if available_bytes is None else available_bytes - fixed_bytes
    if kv_memory_bytes is None:
        if spare_bytes is None:
            raise ModelError(
                "this system does not say how much memory is free; choose with --kv-memory"
            )
        most = sum(
            max_running * blocks * block_bytes
            for blocks, block_bytes in zip(
                blocks_per_sequence(draft, draft.max_context_tokens), use.block_bytes, strict=True
            )
        )
        kv_memory_bytes = min(int(max(spare_bytes, 0) * DEFAULT_SHARE), most)
    elif spare_bytes is not None and kv_memory_bytes > spare_bytes:
        raise ModelError(
            f"{format_bytes(kv_memory_bytes)} were asked for KV blocks, but of "
            f"{format_bytes(available_bytes or 0)} free memory the model leaves "
            f"{format_bytes(max(spare_bytes, 0))}; choose a smaller --kv-memory"
        )
    num_blocks = _split(draft, use, kv_memory_bytes)
    context_tokens = min(draft.max_context_tokens, _capacity_tokens(draft, num_blocks))
    plan = replace(draft, num_blocks=num_blocks, max_context_tokens=context_tokens)
    per_sequence = blocks_per_sequence(plan, context_tokens)
    groups = tuple(
        GroupMemory(
            group.window_tokens, len(group.layers), blocks, block_bytes, blocks * draft.block_size
        )
        for group, blocks, block_bytes in zip(
            draft.groups, num_blocks, use.block_bytes, strict=True
        )
    )
    report = MemoryReport(
        available_bytes=available_bytes,
        weight_bytes=use.weight_bytes,
        activation_bytes=use.activation_bytes,
        groups=groups,
        block_size=draft.block_size,
        kv_dtype=draft.kv_dtype,
        max_context_tokens=context_tokens,
        wanted_context_tokens=draft.max_context_tokens,
        conversations=min(have / need for have, need in zip(num_blocks, per_sequence, strict=True)),
    )
    return plan, report


def blocks_per_sequence(plan: Plan, num_tokens: int) -> tuple[int, ...]:
    """The most blocks of each group that one sequence of ``num_tokens`` ever holds."""
    return tuple(
        most_blocks(num_tokens, group.window_tokens, plan.block_size, plan.max_batch_tokens)
        for group in plan.groups
    )


def _capacity_tokens(plan: Plan, num_blocks: tuple[int, ...]) -> int:
    """The longest sequence that fits if it is alone."""
    return min(
        plan.max_context_tokens if blocks >= most else blocks * plan.block_size
        for blocks, most in zip(
            num_blocks, blocks_per_sequence(plan, plan.max_context_tokens), strict=True
        )
    )


def _split(draft: Plan, use: MemoryUse, kv_memory_bytes: int) -> tuple[int, ...]:
    """Blocks of each group: in proportion to what a sequence of the expected length needs.

    Whatever the proportion, one sequence of a minimal length fits, and a group whose layers have a
    window has room for one whole window.
    """
    expected = min(EXPECTED_CONTEXT_TOKENS, draft.max_context_tokens)
    minimal = min(MINIMAL_CONTEXT_TOKENS, draft.max_context_tokens)
    ratio = blocks_per_sequence(draft, expected)
    floors = tuple(
        at_minimum if group.window_tokens is None else at_expected
        for group, at_minimum, at_expected in zip(
            draft.groups, blocks_per_sequence(draft, minimal), ratio, strict=True
        )
    )
    needed = sum(
        blocks * block_bytes for blocks, block_bytes in zip(floors, use.block_bytes, strict=True)
    )
    if needed > kv_memory_bytes:
        raise ModelError(
            f"{format_bytes(kv_memory_bytes)} for KV blocks is too little: one conversation of "
            f"{minimal} tokens takes {format_bytes(needed)}; give more with --kv-memory"
        )
    bytes_a_sequence = sum(
        blocks * block_bytes for blocks, block_bytes in zip(ratio, use.block_bytes, strict=True)
    )
    sequences = kv_memory_bytes / bytes_a_sequence
    if sequences >= 1:
        return tuple(int(sequences * blocks) for blocks in ratio)
    # Not even one of the expected length: windows keep their floor, the full groups share the rest.
    window_bytes = sum(
        floor * block_bytes
        for group, floor, block_bytes in zip(draft.groups, floors, use.block_bytes, strict=True)
        if group.window_tokens is not None
    )
    block_bytes_of_full = sum(
        block_bytes
        for group, block_bytes in zip(draft.groups, use.block_bytes, strict=True)
        if group.window_tokens is None
    )
    rest = kv_memory_bytes - window_bytes
    return tuple(
        floor if group.window_tokens is not None else max(floor, rest // block_bytes_of_full)
        for group, floor in zip(draft.groups, floors, strict=True)
    )
