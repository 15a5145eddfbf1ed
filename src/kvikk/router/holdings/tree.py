"""Many caches' blocks as one tree of runs: what prompts have in common is kept once, in one piece.

A block key stands for all that comes before it, so two prompts that share a block share every
block before. Prompts then form a tree, and what is always used together lies in one run. Each run
says which caches hold it, a bit for each:

    prompt 1   a b c d e f                    ┌── e f    .1
    prompt 2   a b c d g          a b c d  ───┤
                                     11       └── g      1.

One walk along a prompt's runs, a handful for hundreds of blocks, says of every cache how much it
holds; using and evicting cost a few steps a prompt, where a table of blocks has some for each
block. Each cache's order is that of ``Lru``, to the block: least recently used first, and of one
request's blocks the deepest first.

Only where prompts end do runs stand in that order. All others were used whenever one behind them
was, and go right after the last of those; so a use moves one run, however long its way there was.

The run in front is what a cache is evicting, from its deep end; of that one alone it may hold a
part, the first few blocks. Every other run it holds whole or not at all.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from kvikk.router.holdings.keys import NONE, Keys

# Most runs are the last of their prompts, and nobody is evicting them. Not to be changed.
_NO_CHILDREN: dict[bytes, "Run"] = {}
_NONE_BEHIND: dict[int, int] = {}
_NO_PARTS: dict["TreeCache", int] = {}


class Run:
    """Blocks that follow each other. ``held`` has the bits of the caches that hold all of them.

    ``parts`` says of other caches how many of the first they hold. Somebody holds the last one.
    """

    __slots__ = ("behind", "children", "held", "keys", "length", "parent", "parts")

    def __init__(self, keys: bytes, length: int, parent: "Run | None", held: int) -> None:
        self.keys = keys
        self.length = length
        self.parent = parent
        self.held = held
        self.children: dict[bytes, Run] = _NO_CHILDREN  # by the first key of each
        self.behind: dict[int, int] = _NONE_BEHIND  # by a cache's bit, how many of these it holds
        self.parts: dict[TreeCache, int] = _NO_PARTS

    @property
    def first(self) -> bytes:
        """The first key."""
        return self.keys[: len(self.keys) // self.length]

    def set_part(self, cache: "TreeCache", length: int) -> None:
        """That cache holds its first ``length`` blocks and no more."""
        self.held &= ~cache.bit
        if length == self.length:
            self.held |= cache.bit
        elif self.parts is _NO_PARTS:
            self.parts = {cache: length}
        else:
            self.parts[cache] = length


class PrefixTree:
    """The runs that any cache holds. ``len`` is how many blocks there are."""

    def __init__(self) -> None:
        self._root = Run(b"", 0, None, -1)
        self._num_blocks = 0
        self._walked: tuple[Keys, list[Run]] = (NONE, [])

    def __len__(self) -> int:
        return self._num_blocks

    def hit_blocks(self, keys: Keys, num_caches: int) -> list[int]:
        """For each cache, by the place of its bit, how many of a prompt's first blocks it holds."""
        hits = [0] * num_caches
        left, blocks = (1 << num_caches) - 1, 0
        for run in self.walk(keys):
            gone = left & ~run.held
            if gone:
                if blocks:
                    for place in _places(gone):
                        hits[place] = blocks
                for cache, length in run.parts.items():
                    if gone & cache.bit:
                        hits[cache.place] = blocks + length
                left ^= gone
                if not left:
                    return hits
            blocks += run.length
        if blocks:
            for place in _places(left):
                hits[place] = blocks
        return hits

    def walk(self, keys: Keys) -> list[Run]:
        """The runs that a prompt begins with; what it leaves in the middle is parted there.

        The list grows when a cache takes in the rest of the same prompt, and is not to be changed.
        """
        if self._walked[0] is keys:
            return self._walked[1]
        path: list[Run] = []
        data, width, count = keys.data, keys.width, keys.count
        run, found = self._root, 0
        while found < count:
            start = found * width
            child = run.children.get(data[start : start + width])
            if child is None:
                break
            length = child.length
            if not data.startswith(child.keys, start):
                length = _common(child, keys, found)
                child = self.part(child, length)
            path.append(child)
            run, found = child, found + length
        self._walked = keys, path
        return path

    def grow(self, path: list[Run], keys: bytes, length: int) -> Run:
        """A new run behind ``path``, which nobody holds yet."""
        parent = path[-1] if path else self._root
        run = Run(keys, length, parent, 0)
        if parent.children is _NO_CHILDREN:
            parent.children = {}
        parent.children[run.first] = run
        self._num_blocks += length
        path.append(run)
        return run

    def part(self, run: Run, length: int) -> Run:
        """Make its first ``length`` blocks a run of their own; the rest stays what it is."""
        assert run.parent is not None
        self._forget_walk(run)
        place = len(run.keys) // run.length * length
        upper = Run(run.keys[:place], length, run.parent, run.held)
        run.parent.children[upper.first] = upper
        run.keys, run.length, run.parent = run.keys[place:], run.length - length, upper
        upper.children = {run.first: run}
        upper.behind = {1 << place: 1 for place in _places(run.held)}
        parts, run.parts = run.parts, _NO_PARTS
        for cache, kept in parts.items():
            if kept > length:
                run.set_part(cache, kept - length)
                upper.held |= cache.bit
                upper.behind[cache.bit] = 1
            else:
                upper.set_part(cache, kept)
                cache.evicts_instead(upper, run)
        return upper

    def shorten(self, run: Run) -> None:
        """Nobody holds its last block any more: keep as many as anybody holds."""
        assert run.parent is not None
        self._forget_walk(run)
        parts, run.parts = run.parts, _NO_PARTS
        length = max(parts.values(), default=0)
        self._num_blocks -= run.length - length
        if not length:
            del run.parent.children[run.first]
            return
        run.keys = run.keys[: len(run.keys) // run.length * length]
        run.length = length
        for cache, kept in parts.items():
            run.set_part(cache, kept)

    def _forget_walk(self, run: Run) -> None:
        if run in self._walked[1]:
            self._walked = NONE, []


class TreeCache:
    """One of the tree's caches: at most ``capacity`` blocks; what was used longest ago goes first.

    ``place`` is that of its ``bit``, its own among the caches of the tree. A prompt's keys are a
    chain: equal at one place, they are equal at all places before.
    """

    def __init__(self, tree: PrefixTree, place: int, capacity: int) -> None:
        self.capacity = capacity
        self.place = place
        self.bit = 1 << place
        self.num_blocks = 0
        self._tree = tree
        self._order: OrderedDict[Run, int] = OrderedDict()  # with the turn; the next to go in front

    def leading(self, path: Sequence[Run]) -> int:
        """How many blocks of a prompt's runs are there: the hit."""
        found = 0
        for run in path:
            if not run.held & self.bit:
                return found + run.parts.get(self, 0)
            found += run.length
        return found

    def use(self, keys: Keys, turn: int = 0) -> int:
        """A prompt of these blocks runs from start to end; of too many the first are taken in.

        Returns how many were there.
        """
        keys = keys.first(self.capacity)
        if not keys.count:
            return 0
        bit, order, path = self.bit, self._order, self._tree.walk(keys)
        found = blocks = 0
        for run in path:
            found += run.length if run.held & bit else self._hold(run)
            blocks += run.length
        if blocks < keys.count:
            if path:
                order.pop(path[-1], None)
            rest = keys.data[blocks * keys.width :]
            self._hold(self._tree.grow(path, rest, keys.count - blocks))
        order[path[-1]] = turn
        order.move_to_end(path[-1])
        if self.num_blocks > self.capacity:
            self._shrink()
        return found

    def last_use(self, place: int) -> int:
        """The turn in which the block was used that goes ``place`` blocks from now (0: the next).

        -1 for a place before the first.
        """
        if place < 0:
            return -1
        used, bit, order = -1, self.bit, self._order
        gone: dict[Run, int] = {}  # of those behind it
        passed: set[Run] = set()
        for run, turn in order.items():
            if bit in run.behind and gone.get(run, 0) < run.behind[bit]:
                passed.add(run)
                continue
            while True:
                used = turn
                place -= run.parts.get(self, run.length)
                if place < 0:
                    return used
                parent = run.parent
                assert parent is not None
                gone[parent] = gone.get(parent, 0) + 1
                if (
                    parent.parent is None
                    or gone[parent] < parent.behind[bit]
                    or (parent in order and parent not in passed)
                ):
                    break
                run = parent
        return used

    def resize(self, capacity: int) -> None:
        """Hold at most ``capacity`` blocks from now on."""
        self.capacity = capacity
        self._shrink()

    def evicts_instead(self, run: Run, before: Run) -> None:
        """What it has of the run in front, ``before``, is part of ``run`` now."""
        self._order[run] = self._order.pop(before)
        self._order.move_to_end(run, last=False)

    def _hold(self, run: Run) -> int:
        """Have all of it; returns how many of its blocks were there."""
        assert run.parent is not None
        run.held |= self.bit
        found = run.parts.pop(self, 0)
        if not found:
            behind = run.parent.behind
            if behind is _NONE_BEHIND:
                behind = run.parent.behind = {}
            behind[self.bit] = behind.get(self.bit, 0) + 1
        self.num_blocks += run.length - found
        return found

    def _shrink(self) -> None:
        bit, order = self.bit, self._order
        while (excess := self.num_blocks - self.capacity) > 0:
            run, turn = next(iter(order.items()))
            if bit in run.behind:
                del order[run]  # it has been used since by those behind it, and goes with them
                continue
            left = max(0, run.parts.get(self, run.length) - excess)
            self._keep(run, left)
            if left:
                return
            del order[run]
            parent = run.parent
            assert parent is not None
            if parent.behind[bit] > 1:
                parent.behind[bit] -= 1
                continue
            del parent.behind[bit]
            if parent.parent is not None and parent not in order:
                order[parent] = turn
                order.move_to_end(parent, last=False)

    def _keep(self, run: Run, length: int) -> None:
        """Hold no more than the first ``length`` blocks of it."""
        self.num_blocks -= run.parts.pop(self, run.length) - length
        run.held &= ~self.bit
        if length:
            run.set_part(self, length)
        if not run.held:
            self._tree.shorten(run)


def _places(bits: int) -> Iterator[int]:
    """Where the ones are."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def _common(run: Run, keys: Keys, start: int) -> int:
    """How many of a run's blocks a prompt has from ``start`` on.

    Chains that differ once differ ever after.
    """
    size = keys.width

    def differs(place: int) -> bool:
        return not run.keys.startswith(keys.at(start + place), place * size)

    places = range(min(run.length, keys.count - start))
    return bisect_left(places, True, key=differs)
