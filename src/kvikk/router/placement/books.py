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

from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from kvikk.router.holdings.chains import Chains
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
        self.tokens: dict[str, Counter[Cause]] = {}
        self.answers: Counter[str] = Counter()
        self.oracle_tokens: Counter[str] = Counter()
        self.prompt_tokens = 0
        self._infinite = Chains(_MOST_BLOCKS)
        self._one = Chains(_MOST_BLOCKS)
        self._placed = (Placed("beside"), Placed("apart"))

    def fleet(self, capacity_blocks: dict[str, int]) -> None:
        """These replicas there are, with so much memory each."""
        bounded = {name: min(blocks, _MOST_BLOCKS) for name, blocks in capacity_blocks.items()}
        self._one.resize(max(1, min(sum(bounded.values()), _MOST_BLOCKS)))
        for placed in self._placed:
            placed.fleet(bounded)

    def note(self, answer: Answer) -> dict[Cause, int]:
        """Account for one answer; returns its tokens by cause, which add up to its prompt."""
        seen = self._oracle("infinite", self._infinite, answer)
        self._oracle("one_cache", self._one, answer)
        self._place(answer)
        causes = _causes(answer, seen)
        totals = self.tokens.get(answer.replica)
        if totals is None:
            totals = self.tokens[answer.replica] = Counter()
        for cause, tokens in causes.items():
            totals[cause] += tokens
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

    def _oracle(self, name: str, cache: Chains, answer: Answer) -> int:
        found, _ = cache.use(answer.keys)
        # A replica whose blocks are shorter than these may reuse more.
        hit = max(_tokens(answer, found), answer.hit_tokens)
        self.oracle_tokens[name] += hit
        return hit

    def _place(self, answer: Answer) -> None:
        for placed in self._placed:
            found = _tokens(answer, placed.use(answer.session, answer.keys))
            placed.tokens += max(found, answer.hit_tokens)
        self.oracle_tokens["perfect_placement"] = max(one.tokens for one in self._placed)


def _tokens(answer: Answer, blocks: int) -> int:
    return min(round(blocks * answer.block_tokens), answer.prompt_tokens)


def _causes(answer: Answer, seen_tokens: int) -> dict[Cause, int]:
    """One cause a token: hits first, then what others held, then what was there once."""
    failover = answer.elsewhere_because == "failover"
    claims: tuple[tuple[Cause, int], ...] = (
        ("hit", answer.hit_tokens),
        ("elsewhere_failover" if failover else "elsewhere_load", answer.elsewhere),
        ("elsewhere_ignorance", answer.unknown_elsewhere),
    )
    causes: dict[Cause, int] = {}
    told = 0
    for cause, tokens in claims:
        taken = min(tokens, answer.prompt_tokens - told)
        if taken > 0:
            causes[cause] = taken
            told += taken
    if seen_tokens > told:
        causes["evicted"] = seen_tokens - told
        told = seen_tokens
    if answer.prompt_tokens > told:
        causes["new"] = answer.prompt_tokens - told
    return causes
