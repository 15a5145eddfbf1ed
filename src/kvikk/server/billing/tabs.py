"""One request's bill while it is open, and all of them.

A tab is opened when a request arrives, settled when its answer begins, and closed when it ends. The
caller's usage is told from it, so a stream, a whole answer and the bill say the same.
"""

from collections import OrderedDict
from collections.abc import Callable

from kvikk.cache.ledger.records import Ledger
from kvikk.engine.accounts import KEPT_REQUESTS, Account
from kvikk.engine.requests import Output
from kvikk.engine.requests import Usage as EngineUsage
from kvikk.pricing.decision import Decision
from kvikk.pricing.prices import bill
from kvikk.pricing.prompt import ProviderPrompt
from kvikk.server.billing.book import NOTHING, Book
from kvikk.server.billing.decisions import Decider
from kvikk.wire.usage import Usage

# The longer one of each API's two lifetimes.
_LONG_LIFETIMES = ("1h", "12h")


class Tabs:
    """What all tabs share. Decisions of the last requests are kept, by id."""

    def __init__(self, decider: Decider, clock: Callable[[], float]) -> None:
        self.decider = decider
        self.clock = clock
        self.book = Book()
        self._decisions: OrderedDict[str, Decision] = OrderedDict()

    def open(self, prompt: ProviderPrompt | None) -> "Tab":
        """A tab for a request that arrives now. Raises RequestError for what rules refuse."""
        self.decider.check(prompt)
        return Tab(self, prompt, self.clock())

    def decision(self, request_id: str) -> Decision | None:
        """What was decided about a request, while that is kept."""
        return self._decisions.get(request_id)

    def keep(self, request_id: str, decision: Decision) -> None:
        """Remember what was decided about a request."""
        self._decisions[request_id] = decision
        if len(self._decisions) > KEPT_REQUESTS:
            self._decisions.popitem(last=False)


class Tab:
    """One request's. ``settle`` and ``close`` are for the engine's thread, in this order."""

    def __init__(self, tabs: Tabs, prompt: ProviderPrompt | None, started_s: float) -> None:
        self._tabs = tabs
        self._prompt = prompt
        self._started_s = started_s
        self._account: Account | None = None
        self.decision: Decision | None = None

    def settle(self, account: Account, output: Output) -> None:
        """The request was admitted; its first output decides, unless that is its failure."""
        self._account = account
        if output.finish_reason not in ("abort", "error"):
            ledger: Ledger = account.ledger
            self.decision = self._tabs.decider.decide(
                self._prompt,
                ledger.num_tokens,
                ledger.hit_tokens,
                started_s=self._started_s,
                first_byte_s=self._tabs.clock(),
            )
            self._tabs.keep(account.request_id, self.decision)

    def close(self, usage: EngineUsage) -> None:
        """The request has ended with this; it is entered into the book, if it was admitted."""
        if self._account is None:
            return
        totals = self._tabs.book.of(self._account.origin, self._started_s)
        if self.decision is None:
            totals.unanswered_requests += 1
            totals.unanswered_prompt_tokens += usage.prompt_tokens
            return
        rules, decision, answer = self._tabs.decider.rules, self.decision, usage.completion_tokens
        if rules is None:
            totals.add_answered(decision, answer, NOTHING, NOTHING)
            return
        prices = rules.prices
        totals.add_answered(
            decision,
            answer,
            bill(decision, prices.of(decision.num_tokens), answer),
            bill(decision, prices.relative),
        )

    def __call__(self, usage: EngineUsage) -> Usage:
        """The engine's counts as they go over the wire, once there is an answer."""
        decision = self.decision
        assert decision is not None, "usage is told of answers alone"
        written = decision.written_by_lifetime
        return Usage(
            decision.num_tokens,
            usage.completion_tokens,
            decision.read_tokens,
            decision.written_tokens,
            sum(written.get(lifetime, 0) for lifetime in _LONG_LIFETIMES),
        )
