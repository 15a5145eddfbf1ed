"""One request's bill while it is open, and all of them.

A tab is opened when a request arrives, settled when its answer begins, and entered at its end. The
caller's usage is told from it, so a stream, a whole answer and the bill say the same.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from kvikk.engine.accounts import KEPT_REQUESTS, Account
from kvikk.engine.requests import Output
from kvikk.engine.requests import Usage as EngineUsage
from kvikk.pricing.decision import Decision
from kvikk.pricing.prices import bill
from kvikk.pricing.prompt import ProviderPrompt
from kvikk.server.billing.book import NOTHING, Book, Totals
from kvikk.server.billing.decisions import Decider
from kvikk.server.billing.report import decision_header, decision_json
from kvikk.server.billing.rules import ServedRules
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

    def told(self, request_id: str) -> dict[str, Any]:
        """What is told of a request beside its ledger: ``provider``, where rules decided about it.

        May be asked for in any thread.
        """
        return _told(self.decider.rules, self._decisions.get(request_id))

    def keep(self, request_id: str, decision: Decision) -> None:
        """Remember what was decided about a request."""
        self._decisions[request_id] = decision
        if len(self._decisions) > KEPT_REQUESTS:
            self._decisions.popitem(last=False)


class Tab:
    """One request's. ``settle`` and ``take`` are for the engine's thread, in this order."""

    def __init__(self, tabs: Tabs, prompt: ProviderPrompt | None, started_s: float) -> None:
        self._tabs = tabs
        self._prompt = prompt
        self._started_s = started_s
        self._account: Account | None = None
        self.decision: Decision | None = None
        self._completion_tokens = 0
        self._machine_s = 0.0
        self._text = ""

    def settle(self, account: Account, output: Output) -> None:
        """The request was admitted; its first output decides, unless that is its failure."""
        self._account = account
        if output.finish_reason not in ("abort", "error"):
            ledger = account.ledger
            self.decision = self._tabs.decider.decide(
                self._prompt,
                ledger.num_tokens,
                ledger.hit_tokens,
                started_s=self._started_s,
                first_byte_s=self._tabs.clock(),
            )
            self._tabs.keep(account.request_id, self.decision)

    def take(self, output: Output) -> None:
        """Take note of an output; with a request's last one it is entered into the book."""
        decider = self._tabs.decider
        if decider.keeps_answers and output.choice == 0:
            self._text += output.text
        if output.finish_reason is None:
            return
        self._completion_tokens += output.usage.completion_tokens
        self._machine_s += output.timings.machine_s
        if self._prompt is not None and self._text and output.finish_reason in ("stop", "length"):
            ended_s = self._tabs.clock()
            decider.answered(self._prompt, self._text, started_s=self._started_s, ended_s=ended_s)
        if output.ends_request and self._account is not None:
            self._enter(self._tabs.book.of(self._account.origin, self._started_s), self._account)

    def _enter(self, totals: Totals, account: Account) -> None:
        totals.machine_s += self._machine_s
        decision, rules = self.decision, self._tabs.decider.rules
        if decision is None:
            totals.unanswered_requests += 1
            totals.unanswered_prompt_tokens += account.ledger.num_tokens
            return
        paid = relative = NOTHING
        if rules is not None:
            prices = rules.prices.of(decision.num_tokens)
            paid = bill(decision, prices, self._completion_tokens)
            relative = bill(decision, rules.prices.relative)
        totals.add_answered(decision, self._completion_tokens, paid, relative)

    @property
    def header(self) -> str | None:
        """What is told of the prompt in a header, where rules decided about it."""
        has_rules = self._tabs.decider.rules is not None
        return decision_header(self.decision) if has_rules and self.decision is not None else None

    @property
    def counts(self) -> dict[str, int]:
        """What is told of the prompt in the access log, where rules decided about it."""
        decision = self.decision
        if self._tabs.decider.rules is None or decision is None:
            return {}
        return {
            "read_tokens": decision.read_tokens,
            "written_tokens": decision.written_tokens,
            "plain_tokens": decision.plain_tokens,
        }

    def told(self) -> dict[str, Any]:
        """What is told of the prompt in a body, beside its ledger."""
        return _told(self._tabs.decider.rules, self.decision)

    def usage(self, usage: EngineUsage) -> Usage:
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


def _told(rules: ServedRules | None, decision: Decision | None) -> dict[str, Any]:
    if rules is None or decision is None:
        return {}
    return {"provider": decision_json(rules, decision)}
