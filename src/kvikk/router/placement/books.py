"""The fleet's ledger: where prompt tokens went on all replicas together, and what was attainable.

Every prompt token of every answer has one cause:

* ``hit``: reused.
* ``elsewhere_load``, ``elsewhere_failover``: another replica held it and was too busy, or could not
  be used; ``elsewhere_ignorance``: another one held it and the router did not know.
* ``evicted``: it was somewhere once.
* ``new``: never seen, as far as the books remember.

Beside that three oracles run on the same prompts: one cache that forgets nothing, one cache of all
replicas' memory, and caches like the replicas' with perfect placement, where a session stays where
it began and a new one begins where there is room, or where what must go has been idle longest.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from kvikk.cache.eviction.base import leading_blocks
from kvikk.cache.eviction.lru import Lru

Cause = Literal[
    "hit", "elsewhere_load", "elsewhere_failover", "elsewhere_ignorance", "evicted", "new"
]
CAUSES: tuple[Cause, ...] = (
    "hit",
    "elsewhere_load",
    "elsewhere_failover",
    "elsewhere_ignorance",
    "evicted",
    "new",
)
ORACLES = ("infinite", "one_cache", "perfect_placement")

# What an infinite cache may take up here: some 50 MB.
_MOST_BLOCKS = 1 << 18
_MOST_SESSIONS = 1 << 16


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request, in tokens; ``keys`` stand for ``block_tokens`` each.

    ``elsewhere`` is what was known of at the decision, ``unknown_elsewhere`` what turned out since.
    """

    replica: str
    keys: Sequence[bytes]
    block_tokens: float
    session: bytes
    prompt_tokens: int
    hit_tokens: int
    elsewhere: int = 0
    elsewhere_because: str = ""
    unknown_elsewhere: int = 0


class FleetBooks:
    """Totals since the start, by replica and cause, and the oracles'."""

    def __init__(self) -> None:
        self.tokens: dict[str, Counter[Cause]] = {}
        self.answers: Counter[str] = Counter()
        self.oracle_tokens: Counter[str] = Counter()
        self.prompt_tokens = 0
        self._infinite = Lru(_MOST_BLOCKS)
        self._one = Lru(_MOST_BLOCKS)
        self._placed: dict[str, Lru] = {}
        self._last_use: dict[str, dict[Hashable, int]] = {}
        self._homes: OrderedDict[bytes, str] = OrderedDict()
        self._turn = 0

    def fleet(self, capacity_blocks: dict[str, int]) -> None:
        """These replicas there are, with so much memory each."""
        bounded = {name: min(blocks, _MOST_BLOCKS) for name, blocks in capacity_blocks.items()}
        self._one.resize(max(1, min(sum(bounded.values()), _MOST_BLOCKS)))
        for name in self._placed.keys() - bounded.keys():
            del self._placed[name], self._last_use[name]
        for name, blocks in bounded.items():
            if name in self._placed:
                for key in self._placed[name].resize(max(1, blocks)):
                    self._last_use[name].pop(key, None)
            else:
                self._placed[name] = Lru(max(1, blocks))
                self._last_use[name] = {}

    def note(self, answer: Answer) -> Counter[Cause]:
        """Account for one answer; returns its tokens by cause, which add up to its prompt."""
        seen = self._oracle("infinite", self._infinite, answer)
        self._oracle("one_cache", self._one, answer)
        self._place(answer)
        causes = _causes(answer, seen)
        self.tokens.setdefault(answer.replica, Counter()).update(causes)
        self.answers[answer.replica] += 1
        self.prompt_tokens += answer.prompt_tokens
        return causes

    def total(self) -> Counter[Cause]:
        """Tokens by cause, of all replicas."""
        return sum(self.tokens.values(), Counter())

    def rates(self) -> dict[str, float]:
        """``achieved`` and the oracles' hit rates, by tokens."""
        prompt_tokens = max(1, self.prompt_tokens)
        achieved = {"achieved": self.total()["hit"] / prompt_tokens}
        return achieved | {name: self.oracle_tokens[name] / prompt_tokens for name in ORACLES}

    def _oracle(self, name: str, cache: Lru, answer: Answer) -> int:
        hit = _tokens(answer, leading_blocks(cache, answer.keys))
        # A replica whose blocks are shorter than these may reuse more.
        hit = max(hit, answer.hit_tokens)
        cache.use(answer.keys)
        self.oracle_tokens[name] += hit
        return hit

    def _place(self, answer: Answer) -> None:
        if not self._placed:
            return
        self._turn += 1
        home = self._homes.pop(answer.session, None) if answer.session else None
        if home not in self._placed:
            home = min(self._placed, key=lambda name: self._cost(name, answer.keys))
        assert home is not None
        if answer.session:
            self._homes[answer.session] = home
            if len(self._homes) > _MOST_SESSIONS:
                self._homes.popitem(last=False)
        cache, last_use = self._placed[home], self._last_use[home]
        self.oracle_tokens["perfect_placement"] += max(
            _tokens(answer, leading_blocks(cache, answer.keys)), answer.hit_tokens
        )
        last_use.update(dict.fromkeys(answer.keys, self._turn))
        for key in cache.use(answer.keys):
            last_use.pop(key, None)

    def _cost(self, name: str, keys: Sequence[bytes]) -> tuple[int, int]:
        """When the last block was used that these would drive out; then how many are new there."""
        cache = self._placed[name]
        new = len(keys) - leading_blocks(cache, keys)
        last = -1
        for key in cache.oldest(len(cache) + new - cache.capacity):
            last = self._last_use[name].get(key, -1)
        return last, new


def _tokens(answer: Answer, blocks: int) -> int:
    return min(round(blocks * answer.block_tokens), answer.prompt_tokens)


def _causes(answer: Answer, seen_tokens: int) -> Counter[Cause]:
    """One cause a token: hits first, then what others held, then what was there once."""
    left = answer.prompt_tokens
    causes: Counter[Cause] = Counter()

    def take(cause: Cause, tokens: int) -> None:
        nonlocal left
        taken = min(max(tokens, 0), left)
        left -= taken
        if taken:
            causes[cause] += taken

    take("hit", answer.hit_tokens)
    failover = answer.elsewhere_because == "failover"
    take("elsewhere_failover" if failover else "elsewhere_load", answer.elsewhere)
    take("elsewhere_ignorance", answer.unknown_elsewhere)
    take("evicted", seen_tokens - (answer.prompt_tokens - left))
    take("new", left)
    return causes
