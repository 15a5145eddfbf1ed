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
from collections.abc import Iterator, Sequence

from kvikk.router.holdings.keys import NONE, Keys

# Most runs are the last of their prompts. Not to be changed.
_NO_CHILDREN: dict[bytes, "Run"] = {}


class Run:
    """Blocks that follow each other. ``held`` has the bits of the caches that hold all of them.

    ``shares`` has those that hold some. Somebody holds the last one. ``keys`` may go on behind it.
    """

    __slots__ = ("children", "held", "keys", "length", "parent", "shares", "width")

    def __init__(
        self, keys: bytes, width: int, length: int, parent: "Run | None", held: int
    ) -> None:
        self.keys = keys
        self.width = width
        self.length = length
        self.parent = parent
        self.held = held
        self.children: dict[bytes, Run] = _NO_CHILDREN  # by the first key of each
        self.shares: list[Share] = []

    @property
    def first(self) -> bytes:
        """The first key."""
        return self.keys[: self.width]

    def share(self, cache: "TreeCache") -> "Share | None":
        """What that cache has of it."""
        for share in self.shares:
            if share.cache is cache:
                return share
        return None

    def update_held(self) -> None:
        """See anew who holds all of it."""
        self.held = 0
        for share in self.shares:
            if share.length == self.length:
                self.held |= share.cache.bit


class Share:
    """What a cache has of a run: its first ``length`` blocks, and ``behind`` runs behind it.

    ``before`` and ``after`` are its neighbours in the cache's order, None while it has no place
    there; ``turn`` is when it got that.
    """

    __slots__ = ("after", "before", "behind", "cache", "length", "run", "turn")

    def __init__(self, cache: "TreeCache", run: Run, length: int, behind: int = 0) -> None:
        self.cache = cache
        self.run = run
        self.length = length
        self.behind = behind
        self.turn = -1
        self.before: Share | None = None
        self.after: Share | None = None

    def place_between(self, before: "Share", after: "Share") -> None:
        """Have a place in the order."""
        self.before, self.after = before, after
        before.after = after.before = self

    def leave(self) -> None:
        """Have no place in the order any more."""
        before, after = self.before, self.after
        if before is not None and after is not None:
            before.after, after.before = after, before
            self.before = self.after = None


class PrefixTree:
    """The runs that any cache holds. ``len`` is how many blocks there are."""

    def __init__(self) -> None:
        self.root = Run(b"", 0, 0, None, -1)
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
                for share in run.shares:
                    if gone & share.cache.bit:
                        hits[share.cache.place] = blocks + share.length
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
        run, found = self.root, 0
        while found < count:
            start = found * width
            child = run.children.get(data[start : start + width])
            if child is None:
                break
            length = child.length
            if not data.startswith(child.keys, start):
                length = _common(child, keys, found)
                if length < child.length:
                    child = self._part(child, length)
                else:
                    child.keys = child.keys[: length * width]  # it has been shortened
            path.append(child)
            run, found = child, found + length
        self._walked = keys, path
        return path

    def grow(self, path: list[Run], keys: bytes, width: int) -> Run:
        """A new run behind ``path``, which nobody holds yet."""
        parent = path[-1] if path else self.root
        run = Run(keys, width, len(keys) // width, parent, 0)
        if parent.children is _NO_CHILDREN:
            parent.children = {}
        parent.children[run.first] = run
        self._num_blocks += run.length
        path.append(run)
        return run

    def shorten(self, run: Run) -> None:
        """Nobody holds its last block any more: it ends with the last one that anybody holds."""
        self._forget_walk(run)
        length = 0
        for share in run.shares:
            length = max(length, share.length)
        self._num_blocks -= run.length - length
        run.length = length
        run.update_held()
        if not length:
            assert run.parent is not None
            del run.parent.children[run.first]

    def _part(self, run: Run, length: int) -> Run:
        """Make its first ``length`` blocks a run of their own; the rest stays what it is."""
        assert run.parent is not None
        self._forget_walk(run)
        place = run.width * length
        upper = Run(run.keys[:place], run.width, length, run.parent, 0)
        run.parent.children[upper.first] = upper
        run.keys, run.length, run.parent = run.keys[place:], run.length - length, upper
        upper.children = {run.first: run}
        shares, run.shares = run.shares, []
        for share in shares:
            if share.length > length:
                share.length -= length
                run.shares.append(share)
                share = Share(share.cache, upper, length, 1)
            share.run = upper
            upper.shares.append(share)
        upper.update_held()
        return upper

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
        # The order is a ring, from the next to go to the last one, and from that to the next.
        self._ends = Share(self, tree.root, 0)
        self._ends.place_between(self._ends, self._ends)

    def leading(self, path: Sequence[Run]) -> int:
        """How many blocks of a prompt's runs are there: the hit."""
        found = 0
        for run in path:
            if not run.held & self.bit:
                share = run.share(self)
                return found if share is None else found + share.length
            found += run.length
        return found

    def use(self, keys: Keys, turn: int = 0) -> int:
        """A prompt of these blocks runs from start to end; of too many the first are taken in.

        Returns how many were there.
        """
        keys = keys.first(self.capacity)
        if not keys.count:
            return 0
        path = self._tree.walk(keys)
        found = blocks = 0
        for run in path:
            found += run.length if run.held & self.bit else self._hold(run)
            blocks += run.length
        if blocks < keys.count:
            self._hold(self._tree.grow(path, keys.data[blocks * keys.width :], keys.width))
        share, ends = self._share(path[-1]), self._ends
        share.turn = turn
        share.leave()
        assert ends.before is not None
        share.place_between(ends.before, ends)
        if self.num_blocks > self.capacity:
            self._shrink()
        return found

    def last_use(self, place: int) -> int:
        """The turn in which the block was used that goes ``place`` blocks from now (0: the next).

        -1 for a place before the first.
        """
        if place < 0:
            return -1
        used = -1
        gone: dict[Share, int] = {}  # of those behind it
        passed: set[Share] = set()
        share = self._ends.after
        while share is not None and share is not self._ends:
            one, share = share, share.after
            turn = one.turn
            if one.behind and gone.get(one, 0) < one.behind:
                passed.add(one)
                continue
            while True:
                used = turn
                place -= one.length
                if place < 0:
                    return used
                parent = one.run.parent
                assert parent is not None
                if parent is self._tree.root:
                    break
                one = self._share(parent)
                left = one.behind - gone.get(one, 0) - 1
                gone[one] = one.behind - left
                if left or (one.after is not None and one not in passed):
                    break
        return used

    def resize(self, capacity: int) -> None:
        """Hold at most ``capacity`` blocks from now on."""
        self.capacity = capacity
        self._shrink()

    def _share(self, run: Run) -> Share:
        """What it has of a run of which it has something."""
        share = run.share(self)
        assert share is not None
        return share

    def _hold(self, run: Run) -> int:
        """Have all of it; returns how many of its blocks were there."""
        share = run.share(self)
        if share is None:
            share = Share(self, run, 0)
            run.shares.append(share)
            assert run.parent is not None
            if run.parent is not self._tree.root:
                self._share(run.parent).behind += 1
        found = share.length
        share.length = run.length
        run.held |= self.bit
        self.num_blocks += run.length - found
        return found

    def _shrink(self) -> None:
        while (excess := self.num_blocks - self.capacity) > 0:
            share = self._ends.after
            assert share is not None
            if share.behind:
                share.leave()  # it has been used since by those behind it, and goes with them
                continue
            run, left = share.run, max(0, share.length - excess)
            self.num_blocks -= share.length - left
            share.length = left
            run.held &= ~self.bit
            if not left:
                self._part_with(share)
            if not run.held:
                self._tree.shorten(run)

    def _part_with(self, share: Share) -> None:
        """Nothing of the run is left; what is before it may go next."""
        share.leave()
        share.run.shares.remove(share)
        parent = share.run.parent
        assert parent is not None
        if parent is self._tree.root:
            return
        above, ends = self._share(parent), self._ends
        above.behind -= 1
        if not above.behind and above.after is None:
            above.turn = share.turn
            assert ends.after is not None
            above.place_between(ends, ends.after)


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
