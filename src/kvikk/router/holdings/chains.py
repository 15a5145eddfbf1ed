"""A cache's block keys as a tree of runs: what prompts have in common is kept once, in one piece.

A block key stands for all that comes before it, so two prompts that share a block share every
block before. Prompts then form a tree, and what is always used together lies in one run:

    prompt 1   a b c d e f                    ┌── e f
    prompt 2   a b c d g          a b c d  ───┤
                                              └── g

A prompt of hundreds of blocks is a handful of runs, so that finding, using and evicting cost a few
steps a prompt where a table of blocks has some for each block. The order is that of ``Lru``, to the
block: least recently used first, and of one request's blocks the deepest first.

Only where prompts end do runs stand in that order. All others were used whenever one behind them
was, and go right after the last of those; so a use moves one run, however long its way there was.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

Keys = tuple[bytes, ...]


class _Run:
    """Blocks that follow each other. ``used`` is when they were used last, as the user counts."""

    __slots__ = ("children", "keys", "parent", "used")

    def __init__(self, keys: Keys, parent: "_Run | None", used: int) -> None:
        self.keys = keys
        self.parent = parent
        self.used = used
        self.children: dict[bytes, _Run] | None = None  # by the first key of each


class Chains:
    """At most ``capacity`` blocks; what was used longest ago goes first.

    A prompt's keys are a chain: equal at one place, they are equal at all places before.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._root = _Run((), None, 0)
        self._order: OrderedDict[_Run, None] = OrderedDict()  # the next to go in front
        self._num_blocks = 0

    def __len__(self) -> int:
        return self._num_blocks

    def leading(self, keys: Sequence[bytes]) -> int:
        """How many of a prompt's first blocks are there: the hit."""
        run, found, count = self._root, 0, len(keys)
        while found < count and run.children is not None:
            child = run.children.get(keys[found])
            if child is None:
                break
            end = found + len(child.keys)
            if end > count or keys[end - 1] != child.keys[-1]:
                return found + _common(child.keys, keys[found:])
            run, found = child, end
        return found

    def use(self, keys: Sequence[bytes], turn: int = 0) -> tuple[int, list[bytes]]:
        """A prompt of these blocks runs from start to end; of too many the first are taken in.

        Returns how many were there, and the keys that were evicted.
        """
        if len(keys) > self.capacity:
            keys = keys[: self.capacity]
        run, found, count = self._root, 0, len(keys)
        while found < count and run.children is not None:
            child = run.children.get(keys[found])
            if child is None:
                break
            end = found + len(child.keys)
            if end > count or keys[end - 1] != child.keys[-1]:
                length = _common(child.keys, keys[found:])
                child = _split(child, length)
                end = found + length
            child.used = turn
            run, found = child, end
        if found < count:
            if run.children is None and run is not self._root:
                run.keys += tuple(keys[found:])  # it is the deepest, and used as a whole
            else:
                run = _grow(run, tuple(keys[found:]), turn)
            self._num_blocks += count - found
        if run is not self._root:
            self._order[run] = None
            self._order.move_to_end(run)
        return found, self._shrink() if self._num_blocks > self.capacity else []

    def last_use(self, place: int) -> int:
        """The turn in which the block was used that goes ``place`` blocks from now (0: the next).

        -1 for a place before the first.
        """
        used = -1
        gone: dict[_Run, int] = {}  # children
        passed: set[_Run] = set()
        for run in self._order if place >= 0 else ():
            passed.add(run)
            while run.children is None or gone.get(run) == len(run.children):
                used = run.used
                place -= len(run.keys)
                if place < 0:
                    return used
                assert run.parent is not None
                run = run.parent
                gone[run] = gone.get(run, 0) + 1
                if run is self._root or (run in self._order and run not in passed):
                    break
        return used

    def resize(self, capacity: int) -> list[bytes]:
        """Hold at most ``capacity`` blocks from now on. Returns the keys that were evicted."""
        self.capacity = capacity
        return self._shrink()

    def _shrink(self) -> list[bytes]:
        evicted: list[bytes] = []
        order, excess = self._order, self._num_blocks - self.capacity
        while excess > 0:
            run = next(iter(order))
            if run.children is not None:
                del order[run]  # it has been used since by those behind it, and goes with them
            elif len(run.keys) > excess:
                evicted += run.keys[-excess:]
                run.keys = run.keys[:-excess]
                break
            else:
                evicted += run.keys
                excess -= len(run.keys)
                del order[run]
                parent = _drop(run)
                if parent.children is None and parent is not self._root and parent not in order:
                    order[parent] = None
                    order.move_to_end(parent, last=False)
        self._num_blocks -= len(evicted)
        return evicted


def _grow(parent: _Run, keys: Keys, used: int) -> _Run:
    """A new run behind ``parent``."""
    run = _Run(keys, parent, used)
    if parent.children is None:
        parent.children = {}
    parent.children[keys[0]] = run
    return run


def _split(run: _Run, length: int) -> _Run:
    """Make the first ``length`` blocks a run of their own; the rest stays what and where it is."""
    assert run.parent is not None
    assert run.parent.children is not None
    upper = _Run(run.keys[:length], run.parent, run.used)
    run.parent.children[upper.keys[0]] = upper
    run.keys, run.parent = run.keys[length:], upper
    upper.children = {run.keys[0]: run}
    return upper


def _drop(run: _Run) -> _Run:
    """Take a run without children out of the tree; returns the one before it."""
    parent = run.parent
    assert parent is not None
    assert parent.children is not None
    del parent.children[run.keys[0]]
    if not parent.children:
        parent.children = None
    return parent


def _common(keys: Sequence[bytes], others: Sequence[bytes]) -> int:
    """How many leading blocks are the same. Chains that differ once differ ever after."""
    places = range(min(len(keys), len(others)))
    return bisect_left(places, True, key=lambda place: keys[place] != others[place])
