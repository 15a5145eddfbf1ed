"""The fleet's ledger: where prompt tokens went on all replicas together, and what was attainable.

Every prompt token of every answer has one cause:

* ``hit``: reused.
* ``elsewhere_load``, ``elsewhere_failover``: another replica held it and was too busy, or could not
  be used; ``elsewhere_ignorance``: another one held it and the router did not know.
* ``evicted``: it was somewhere once.
* ``new``: never seen, as far as the books remember.

Beside that three oracles run on the same prompts: one cache that forgets nothing, one cache of all
replicas' memory, and caches like the replicas' with perfect placement.
"""

from collections.abc import Sequence
from itertools import count
from typing import Literal, NamedTuple

from kvikk.router.holdings.tree import PrefixTree, TreeCache
from kvikk.router.placement.perfect import Placed

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


class Answer(NamedTuple):
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
        self.tokens: dict[str, dict[Cause, int]] = {}
        self.answers: dict[str, int] = {}
        self.oracle_tokens = dict.fromkeys(ORACLES, 0)
        self.prompt_tokens = 0
        tree, places = PrefixTree(), count()
        self._infinite = TreeCache(tree, next(places), _MOST_BLOCKS)
        self._one = TreeCache(tree, next(places), _MOST_BLOCKS)
        self._placed = (Placed("beside", tree, places), Placed("apart", tree, places))

    def fleet(self, capacity_blocks: dict[str, int]) -> None:
        """These replicas there are, with so much memory each."""
        bounded = {name: min(blocks, _MOST_BLOCKS) for name, blocks in capacity_blocks.items()}
        self._one.resize(max(1, min(sum(bounded.values()), _MOST_BLOCKS)))
        for placed in self._placed:
            placed.fleet(bounded)

    def note(self, answer: Answer) -> dict[Cause, int]:
        """Account for one answer; returns its tokens by cause, which add up to its prompt."""
        keys, oracles = answer.keys, self.oracle_tokens
        seen = _hit(answer, self._infinite.use(keys))
        oracles["infinite"] += seen
        oracles["one_cache"] += _hit(answer, self._one.use(keys))
        for placed in self._placed:
            placed.tokens += _hit(answer, placed.use(answer.session, keys))
        causes = _causes(answer, seen)
        totals = self.tokens.get(answer.replica)
        if totals is None:
            totals = self.tokens[answer.replica] = dict.fromkeys(CAUSES, 0)
        for cause, tokens in causes.items():
            totals[cause] += tokens
        self.answers[answer.replica] = self.answers.get(answer.replica, 0) + 1
        self.prompt_tokens += answer.prompt_tokens
        return causes

    def total(self) -> dict[Cause, int]:
        """Tokens by cause, of all replicas."""
        return {cause: sum(one[cause] for one in self.tokens.values()) for cause in CAUSES}

    def rates(self) -> dict[str, float]:
        """``achieved`` and the oracles' hit rates, by tokens."""
        self.oracle_tokens["perfect_placement"] = max(one.tokens for one in self._placed)
        prompt_tokens = max(1, self.prompt_tokens)
        achieved = {"achieved": self.total()["hit"] / prompt_tokens}
        return achieved | {name: self.oracle_tokens[name] / prompt_tokens for name in ORACLES}


def _hit(answer: Answer, blocks: int) -> int:
    """Tokens of so many blocks; a replica whose blocks are shorter than these may reuse more."""
    tokens = min(round(blocks * answer.block_tokens), answer.prompt_tokens)
    return max(answer.hit_tokens, tokens)


def _causes(answer: Answer, seen_tokens: int) -> dict[Cause, int]:
    """One cause a token: hits first, then what others held, then what was there once."""
    hit = min(answer.hit_tokens, answer.prompt_tokens)
    left = answer.prompt_tokens - hit
    elsewhere = min(answer.elsewhere, left)
    unknown = max(min(answer.unknown_elsewhere, left - elsewhere), 0)
    evicted = max(seen_tokens - hit - elsewhere - unknown, 0)
    failover = answer.elsewhere_because == "failover"
    causes: dict[Cause, int] = {
        "hit": hit,
        "elsewhere_failover" if failover else "elsewhere_load": elsewhere,
        "elsewhere_ignorance": unknown,
        "evicted": evicted,
        "new": left - elsewhere - unknown - evicted,
    }
    return {cause: tokens for cause, tokens in causes.items() if tokens}
