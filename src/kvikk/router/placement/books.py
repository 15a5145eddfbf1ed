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

from itertools import count
from typing import Final, Literal

from kvikk.router.holdings.keys import Keys
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
# Answers that may wait for the books: a request that comes while they are entered waits for all.
_MOST_DUE = 8


class Answer:
    """What came of one request, in tokens; ``keys`` stand for ``block_tokens`` each.

    ``elsewhere`` is what was known of at the decision, ``unknown_elsewhere`` what turned out since.
    """

    __slots__ = (
        *("block_tokens", "elsewhere", "elsewhere_because", "hit_tokens", "keys"),
        *("prompt_tokens", "replica", "session", "unknown_elsewhere"),
    )

    def __init__(
        self,
        replica: str,
        keys: Keys,
        block_tokens: float,
        session: bytes,
        prompt_tokens: int,
        hit_tokens: int,
        elsewhere: int = 0,
        elsewhere_because: str = "",
        unknown_elsewhere: int = 0,
    ) -> None:
        self.replica: Final = replica
        self.keys: Final = keys
        self.block_tokens: Final = block_tokens
        self.session: Final = session
        self.prompt_tokens: Final = prompt_tokens
        self.hit_tokens: Final = hit_tokens
        self.elsewhere: Final = elsewhere
        self.elsewhere_because: Final = elsewhere_because
        self.unknown_elsewhere: Final = unknown_elsewhere


class FleetBooks:
    """Totals since the start, by replica and cause, and the oracles'.

    Answers are entered in their order, many at a time: one after the other, each is a third of the
    work that it is between two requests, when the processor's caches hold other things. Whoever
    looks at a figure has them entered first.
    """

    def __init__(self) -> None:
        self._tokens: dict[str, dict[Cause, int]] = {}
        self._answers: dict[str, int] = {}
        self._oracle_tokens = dict.fromkeys(ORACLES, 0)
        self._prompt_tokens = 0
        self._due: list[Answer] = []
        tree, places = PrefixTree(), count()
        self._infinite = TreeCache(tree, next(places), _MOST_BLOCKS)
        self._one = TreeCache(tree, next(places), _MOST_BLOCKS)
        self._placed = (Placed("beside", tree, places), Placed("apart", tree, places))

    def fleet(self, capacity_blocks: dict[str, int]) -> None:
        """These replicas there are, with so much memory each."""
        self.settle()
        bounded = {name: min(blocks, _MOST_BLOCKS) for name, blocks in capacity_blocks.items()}
        self._one.resize(max(1, min(sum(bounded.values()), _MOST_BLOCKS)))
        for placed in self._placed:
            placed.fleet(bounded)

    def take(self, answer: Answer) -> None:
        """Account for one answer, soon."""
        self._due.append(answer)
        if len(self._due) >= _MOST_DUE:
            self.settle()

    def settle(self) -> None:
        """Account for all answers so far."""
        due, self._due = self._due, []
        for answer in due:
            self._enter(answer)

    def note(self, answer: Answer) -> dict[Cause, int]:
        """Account for one answer; returns its tokens by cause, which add up to its prompt."""
        self.settle()
        return self._enter(answer)

    def _enter(self, answer: Answer) -> dict[Cause, int]:
        keys, oracles = answer.keys, self._oracle_tokens
        seen = _hit(answer, self._infinite.use(keys))
        oracles["infinite"] += seen
        oracles["one_cache"] += _hit(answer, self._one.use(keys))
        for placed in self._placed:
            placed.tokens += _hit(answer, placed.use(answer.session, keys))
        causes = _causes(answer, seen)
        totals = self._tokens.get(answer.replica)
        if totals is None:
            totals = self._tokens[answer.replica] = dict.fromkeys(CAUSES, 0)
        for cause, tokens in causes.items():
            totals[cause] += tokens
        self._answers[answer.replica] = self._answers.get(answer.replica, 0) + 1
        self._prompt_tokens += answer.prompt_tokens
        return causes

    @property
    def tokens(self) -> dict[str, dict[Cause, int]]:
        """Prompt tokens by replica and cause."""
        self.settle()
        return self._tokens

    @property
    def answers(self) -> dict[str, int]:
        """Answers by replica."""
        self.settle()
        return self._answers

    @property
    def prompt_tokens(self) -> int:
        """All prompt tokens."""
        self.settle()
        return self._prompt_tokens

    def total(self) -> dict[Cause, int]:
        """Tokens by cause, of all replicas."""
        return {cause: sum(one[cause] for one in self.tokens.values()) for cause in CAUSES}

    def rates(self) -> dict[str, float]:
        """``achieved`` and the oracles' hit rates, by tokens."""
        self.settle()
        self._oracle_tokens["perfect_placement"] = max(one.tokens for one in self._placed)
        prompt_tokens = max(1, self.prompt_tokens)
        achieved = {"achieved": self.total()["hit"] / prompt_tokens}
        return achieved | {name: self._oracle_tokens[name] / prompt_tokens for name in ORACLES}


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
