"""A second cache manager, slow and plain, to compare with: every question is answered by a scan.

It is written from the rules in docs/cache.md and shares no code and no data structure with the real
one: blocks are objects, references are the tables themselves, the free queue is a clock on every
block, a hit is searched position by position from the longest down.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(eq=False)
class OracleBlock:
    key: bytes | None = None
    left_at: tuple[int, int] = (0, 0)  # when its last user went: the clock, and deepest first


@dataclass(eq=False)
class OracleSequence:
    tables: list[list[OracleBlock | None]]
    room: int
    computed: int
    published: int
    prompt_keys: list[bytes]
    publishes: bool
    born: int


@dataclass(eq=False)
class OracleGroup:
    num_blocks: int
    window: int | None
    blocks: list[OracleBlock] = field(default_factory=list)  # the live and the cached

    def find(self, key: bytes) -> OracleBlock | None:
        return next((block for block in self.blocks if block.key == key), None)

    def keys(self) -> set[bytes]:
        return {block.key for block in self.blocks if block.key is not None}


class Oracle:
    def __init__(
        self, groups: Sequence[tuple[int, int | None]], block_size: int, caching: bool
    ) -> None:
        self.groups = [OracleGroup(num_blocks, window) for num_blocks, window in groups]
        self.block_size = block_size
        self.caching = caching
        self.sequences: dict[int, OracleSequence] = {}
        self.claims: list[tuple[bytes, int]] = []  # who said first that it will compute a key
        self.clock = 0

    # Queries

    def is_live(self, block: OracleBlock) -> bool:
        return any(
            block is held
            for sequence in self.sequences.values()
            for table in sequence.tables
            for held in table
        )

    def usage(self, group: int) -> tuple[int, int, int, int]:
        pool = self.groups[group]
        live = sum(self.is_live(block) for block in pool.blocks)
        return (
            pool.num_blocks,
            live,
            len(pool.blocks) - live,
            pool.num_blocks - len(pool.blocks),
        )

    def sole_blocks(self, sequence_id: int) -> tuple[int, ...]:
        others = [s for i, s in self.sequences.items() if i != sequence_id]
        return tuple(
            sum(
                block is not None
                and not any(block is held for other in others for held in other.tables[group])
                for block in self.sequences[sequence_id].tables[group]
            )
            for group in range(len(self.groups))
        )

    def hit(self, keys: Sequence[bytes], num_tokens: int, promised: set[bytes]) -> int:
        """Blocks of the longest prefix of which every group has all that the next token reads."""
        if not self.caching:
            return 0
        known = [group.keys() | promised for group in self.groups]
        for blocks in range(len(keys), 0, -1):
            boundary = blocks * self.block_size
            if boundary < num_tokens and all(
                keys[position // self.block_size] in present
                for group, present in zip(self.groups, known, strict=True)
                for position in self.visible(boundary, group.window)
            ):
                return blocks
        return 0

    def visible(self, position: int, window: int | None) -> list[int]:
        """The positions before this one that its token attends to."""
        return [p for p in range(position) if window is None or p > position - window]

    def match(self, keys: Sequence[bytes], num_tokens: int) -> tuple[int, int, int | None]:
        hit = self.hit(keys, num_tokens, set())
        reachable = [key for i, key in enumerate(keys) if (i + 1) * self.block_size < num_tokens]
        claims = dict(reversed(self.claims)) if self.caching else {}
        for key in reachable[hit:]:
            if key in claims:
                owner = claims[key]
                promised = {k for k in reachable[hit:] if claims.get(k) == owner}
                more = self.hit(keys, num_tokens, promised) - hit
                return hit, more, owner if more else None
        return hit, 0, None

    # Changes; each returns False, and has done nothing, where blocks are short

    def open(self, sequence_id: int, keys: Sequence[bytes], hit: int, num_tokens: int) -> bool:
        self.clock += 1
        boundary = hit * self.block_size
        tables: list[list[OracleBlock | None]] = []
        for group in self.groups:
            needed = {p // self.block_size for p in self.visible(boundary, group.window)}
            tables.append([group.find(keys[i]) if i in needed else None for i in range(hit)])
        fresh = self.count(boundary + num_tokens) - hit
        for group, table in zip(self.groups, tables, strict=True):
            busy = [block for block in group.blocks if self.is_live(block) or block in table]
            if len(busy) + fresh > group.num_blocks:
                return False
        self.sequences[sequence_id] = OracleSequence(
            tables, boundary + num_tokens, boundary, hit, list(keys), self.caching, self.clock
        )
        self.make([fresh] * len(self.groups), tables)
        if self.caching:
            self.claims += [(key, sequence_id) for key in keys[hit:]]
        return True

    def append(self, sequence_id: int, num_tokens: int) -> list[int] | None:
        """The groups in which a block was copied; None where blocks are short."""
        self.clock += 1
        sequence = self.sequences[sequence_id]
        fresh = self.count(sequence.room + num_tokens) - self.count(sequence.room)
        copied = []
        if sequence.room % self.block_size and num_tokens:
            for group in range(len(self.groups)):
                last = sequence.tables[group][-1]
                users = [s for s in self.sequences.values() if last in s.tables[group]]
                if len(users) > 1:
                    copied.append(group)
        needed = [fresh + (group in copied) for group in range(len(self.groups))]
        for group, count in zip(self.groups, needed, strict=True):
            if sum(self.is_live(block) for block in group.blocks) + count > group.num_blocks:
                return None
        for group in copied:
            sequence.tables[group].pop()
        self.make(needed, sequence.tables)
        sequence.room += num_tokens
        return copied

    def commit(self, sequence_id: int, num_tokens: int, keys: Sequence[bytes]) -> None:
        self.clock += 1
        sequence = self.sequences[sequence_id]
        sequence.computed = num_tokens
        full = min(len(keys), num_tokens // self.block_size)
        if sequence.publishes and full > sequence.published:
            self.claims = [
                claim for claim in self.claims if claim[0] not in keys[sequence.published : full]
            ]
            for group, table in zip(self.groups, sequence.tables, strict=True):
                for i in range(sequence.published, full):
                    own, known = table[i], group.find(keys[i])
                    if own is not None and known is None:
                        own.key = keys[i]
                    elif own is not None:
                        table[i] = known
            sequence.published = full
        for group, table in zip(self.groups, sequence.tables, strict=True):
            needed = {p // self.block_size for p in self.visible(num_tokens, group.window)}
            for i in range(num_tokens // self.block_size):
                if i not in needed:
                    self.let_go(table, i)
        self.sweep()

    def fork(self, parent_id: int, child_id: int) -> None:
        parent = self.sequences[parent_id]
        self.sequences[child_id] = OracleSequence(
            [list(table) for table in parent.tables],
            parent.room,
            parent.computed,
            parent.published,
            [],
            parent.publishes,
            parent.born,
        )

    def free(self, sequence_id: int) -> None:
        self.clock += 1
        sequence = self.sequences.pop(sequence_id)
        self.claims = [claim for claim in self.claims if claim[1] != sequence_id]
        for table in sequence.tables:
            for i in range(len(table)):
                self.let_go(table, i)
        self.sweep()

    def reset(self) -> tuple[int, int]:
        cached = sum(self.usage(group)[2] for group in range(len(self.groups)))
        live = sum(self.usage(group)[1] for group in range(len(self.groups)))
        for group in self.groups:
            for block in group.blocks:
                block.key = None
        for sequence in self.sequences.values():
            sequence.publishes = False
        self.claims = []
        self.sweep()
        return cached, live

    # Helpers

    def count(self, num_tokens: int) -> int:
        return len({position // self.block_size for position in range(num_tokens)})

    def let_go(self, table: list[OracleBlock | None], i: int) -> None:
        block = table[i]
        table[i] = None
        if block is not None and not self.is_live(block):
            block.left_at = (self.clock, -i)

    def sweep(self) -> None:
        """Blocks without user and without name are empty: forget them."""
        for group in self.groups:
            group.blocks = [b for b in group.blocks if b.key is not None or self.is_live(b)]

    def make(self, counts: Sequence[int], tables: list[list[OracleBlock | None]]) -> None:
        """Append fresh blocks to the tables, groups that keep everything first."""
        self.sweep()
        order = sorted(
            zip(self.groups, counts, tables, strict=True), key=lambda x: bool(x[0].window)
        )
        for group, count, table in order:
            while len(group.blocks) + count > group.num_blocks:
                idle = [block for block in group.blocks if not self.is_live(block)]
                victim = min(idle, key=lambda block: block.left_at)
                affected = self.groups if group.window is None else [group]
                for other in affected:
                    other.blocks = [b for b in other.blocks if b.key != victim.key]
            fresh = [OracleBlock() for _ in range(count)]
            group.blocks += fresh
            table += fresh
