"""Accounts by time and origin; a tenant is told of them as if there were no other."""

from kvikk.cache.ledger.records import Cause, Ledger, Span
from kvikk.engine import accounts
from kvikk.engine.accounts import Accounts, Totals
from kvikk.engine.requests import Origin

ADA, BOB = Origin("ada", route="/chat"), Origin("bob", route="/chat")


class Day:
    """Accounts, and a clock that goes when told to."""

    def __init__(self) -> None:
        self.now_s = 1_000_000_020.0  # a minute begins
        self.accounts = Accounts(clock=lambda: self.now_s)
        self.count = 0

    def ask(self, origin: Origin, operators: Cause = Cause.NEW, own: Cause = Cause.NEW) -> str:
        name, self.count = f"request {self.count}", self.count + 1
        ledger = Ledger(8, (Span(0, 8, operators),), (Span(0, 8, own),))
        self.accounts.add(name, self.count, ledger, origin)
        return name


def test_a_tenant_is_told_of_no_minute_request_or_cause_of_another() -> None:
    day = Day()
    day.ask(ADA)
    day.now_s += 60
    bobs = day.ask(BOB, Cause.ISOLATED, Cause.NEW)
    day.now_s += 60
    adas = day.ask(ADA, Cause.HIT_DEVICE, Cause.HIT_DEVICE)
    said = day.accounts
    assert [totals.requests for _, totals in said.history(3600)] == [1, 1, 1]
    assert [at - day.now_s for at, _ in said.history(3600, "ada")] == [-120, 0]
    assert said.totals(3600, "bob") == Totals(1, {Cause.NEW: 8})
    assert said.totals(3600) == Totals(3, {Cause.HIT_DEVICE: 8, Cause.ISOLATED: 8, Cause.NEW: 8})
    assert set(said.totals_by("tenant", 3600, "ada")) == {"ada"}
    assert set(said.totals_by("tenant", 3600)) == {"ada", "bob"}
    assert [account.request_id for account in said.latest(9, "ada")] == [adas, "request 0"]
    assert said.find(bobs, "ada") is None
    assert said.name(2, "ada") is None
    assert said.name(2) == bobs


def test_a_window_leaves_out_what_was_before_and_totals_since_the_start_do_not() -> None:
    day = Day()
    day.ask(ADA)
    day.now_s += 600
    day.ask(ADA)
    assert day.accounts.totals(60).prompt_tokens == 8
    assert day.accounts.totals(900).prompt_tokens == 16
    day.now_s += 86_400
    assert day.accounts.totals(900) == Totals(0, {})
    assert day.accounts.since_start()[Cause.NEW] == 16


def test_so_many_requests_are_kept_and_one_id_twice_is_one(monkeypatch) -> None:
    monkeypatch.setattr(accounts, "KEPT_REQUESTS", 3)
    day = Day()
    names = [day.ask(ADA) for _ in range(5)]
    assert [account.request_id for account in day.accounts.latest(9)] == names[:1:-1]
    assert day.accounts.name(1) is None
    ledger = Ledger(1, (Span(0, 1, Cause.TAIL),))
    day.accounts.add(names[-1], 99, ledger, ADA)
    assert [account.sequence for account in day.accounts.latest(9)] == [99, 4, 3]
    assert day.accounts.name(5) is None
