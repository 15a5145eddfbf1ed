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
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence

# Most runs are the last of their prompts. These two are not to be changed.
_NO_CHILDREN: dict[bytes, "Run"] = {}
_NONE_BEHIND: dict[int, int] = {}


class Run:
    """Blocks that follow each other. ``held`` has the bits of the caches that hold all of them.

    ``keys`` has those of all ``length`` blocks in one piece: hundreds of objects for every prompt
    would be hundreds of places in memory.
    """

    __slots__ = ("behind", "children", "held", "keys", "length", "parent")

    def __init__(self, keys: bytes, length: int, parent: "Run | None", held: int) -> None:
        self.keys = keys
        self.length = length
        self.parent = parent
        self.held = held
        self.children: dict[bytes, Run] = _NO_CHILDREN  # by the first key of each
        self.behind: dict[int, int] = _NONE_BEHIND  # by a cache's bit, how many of these it holds

    @property
    def first(self) -> bytes:
        """The first key."""
        return self.keys[: len(self.keys) // self.length]


class PrefixTree:
    """The runs that any cache holds. ``len`` is how many blocks there are.

    The keys of one prompt are of one length.
    """

    def __init__(self) -> None:
        self._root = Run(b"", 0, None, -1)
        self._num_blocks = 0
        self._walked: tuple[Sequence[bytes], list[Run]] = ((), [])

    def __len__(self) -> int:
        return self._num_blocks

    def hit_blocks(self, keys: Sequence[bytes], num_caches: int) -> list[int]:
        """For each cache, by the place of its bit, how many of a prompt's first blocks it holds."""
        hits = [0] * num_caches
        left, blocks = (1 << num_caches) - 1, 0
        for run in self.walk(keys):
            if blocks and left & ~run.held:
                for place in _places(left & ~run.held):
                    hits[place] = blocks
            left &= run.held
            if not left:
                return hits
            blocks += run.length
        if blocks:
            for place in _places(left):
                hits[place] = blocks
        return hits

    def walk(self, keys: Sequence[bytes]) -> list[Run]:
        """The runs that a prompt begins with; what it leaves in the middle is parted there.

        The list grows when a cache takes in the rest of the same prompt, and is not to be changed.
        """
        if self._walked[0] is keys:
            return self._walked[1]
        path: list[Run] = []
        run, found, count = self._root, 0, len(keys)
        while found < count:
            child = run.children.get(keys[found])
            if child is None:
                break
            end = found + child.length
            if end > count or not child.keys.endswith(keys[end - 1]):
                length = _common(child, keys, found)
                child, end = self.part(child, length), found + length
            path.append(child)
            run, found = child, end
        self._walked = keys, path
        return path

    def grow(self, path: list[Run], keys: Sequence[bytes]) -> Run:
        """A new run behind ``path``, which nobody holds yet."""
        parent = path[-1] if path else self._root
        run = Run(b"".join(keys), len(keys), parent, 0)
        if parent.children is _NO_CHILDREN:
            parent.children = {}
        parent.children[keys[0]] = run
        self._num_blocks += run.length
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
        return upper

    def drop(self, run: Run) -> None:
        """Nobody holds it any more, and nothing behind it."""
        assert run.parent is not None
        self._forget_walk(run)
        del run.parent.children[run.first]
        self._num_blocks -= run.length

    def _forget_walk(self, run: Run) -> None:
        if run in self._walked[1]:
            self._walked = (), []


class TreeCache:
    """One of the tree's caches: at most ``capacity`` blocks; what was used longest ago goes first.

    ``place`` is that of its bit, its own among the caches of the tree. A prompt's keys are a chain:
    equal at one place, they are equal at all places before.
    """

    def __init__(self, tree: PrefixTree, place: int, capacity: int) -> None:
        self.capacity = capacity
        self.place = place
        self._tree = tree
        self._bit = 1 << place
        self._order: OrderedDict[Run, int] = OrderedDict()  # with the turn; the next to go in front
        self.num_blocks = 0

    def leading(self, path: Sequence[Run]) -> int:
        """How many blocks of a prompt's runs are there: the hit."""
        found = 0
        for run in path:
            if not run.held & self._bit:
                break
            found += run.length
        return found

    def use(self, keys: Sequence[bytes], turn: int = 0) -> int:
        """A prompt of these blocks runs from start to end; of too many the first are taken in.

        Returns how many were there.
        """
        if len(keys) > self.capacity:
            keys = keys[: self.capacity]
        if not keys:
            return 0
        bit, order, path = self._bit, self._order, self._tree.walk(keys)
        found = blocks = 0
        for run in path:
            if run.held & bit:
                found += run.length
            else:
                self._hold(run)
            blocks += run.length
        if blocks < len(keys):
            if path:
                order.pop(path[-1], None)
            self._hold(self._tree.grow(path, keys[blocks:]))
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
        used, bit, order = -1, self._bit, self._order
        gone: dict[Run, int] = {}  # of those behind it
        passed: set[Run] = set()
        for run, turn in order.items():
            if bit in run.behind and gone.get(run, 0) < run.behind[bit]:
                passed.add(run)
                continue
            while True:
                used = turn
                place -= run.length
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

    def _hold(self, run: Run) -> None:
        assert run.parent is not None
        run.held |= self._bit
        behind = run.parent.behind
        if behind is _NONE_BEHIND:
            behind = run.parent.behind = {}
        behind[self._bit] = behind.get(self._bit, 0) + 1
        self.num_blocks += run.length

    def _shrink(self) -> None:
        bit, order, tree = self._bit, self._order, self._tree
        while (excess := self.num_blocks - self.capacity) > 0:
            run, turn = next(iter(order.items()))
            if bit in run.behind:
                del order[run]  # it has been used since by those behind it, and goes with them
                continue
            if run.length > excess:
                tree.part(run, run.length - excess)
            del order[run]
            self.num_blocks -= run.length
            run.held ^= bit
            if not run.held:
                tree.drop(run)
            parent = run.parent
            assert parent is not None
            if parent.behind[bit] > 1:
                parent.behind[bit] -= 1
                continue
            del parent.behind[bit]
            if parent.parent is not None and parent not in order:
                order[parent] = turn
                order.move_to_end(parent, last=False)


def _places(bits: int) -> Iterator[int]:
    """Where the ones are."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def _common(run: Run, keys: Sequence[bytes], start: int) -> int:
    """How many of a run's blocks a prompt has from ``start`` on.

    Chains that differ once differ ever after.
    """
    size = len(run.keys) // run.length

    def differs(place: int) -> bool:
        return not run.keys.startswith(keys[start + place], place * size)

    places = range(min(run.length, len(keys) - start))
    return bisect_left(places, True, key=differs)
