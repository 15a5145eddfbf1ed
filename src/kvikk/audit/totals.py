"""The sums of an audit: by cause, in tokens and in money, and beside the provider's own counts."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

import orjson

from kvikk.audit.findings import Account, Audited, Finding, is_expected


@dataclass
class CauseTotal:
    """All findings of one class. Costs are of those with a price; ``unpriced`` counts the others.

    ``worst`` is the one with the most missed tokens.
    """

    findings: int = 0
    missed_tokens: int = 0
    cost: float = 0.0
    cost_in_input_tokens: float = 0.0
    unpriced: int = 0
    worst: Finding | None = None

    def add(self, finding: Finding) -> None:
        """Count one."""
        self.findings += 1
        self.missed_tokens += finding.missed_tokens
        self.cost += finding.cost or 0.0
        self.cost_in_input_tokens += finding.cost_in_input_tokens or 0.0
        self.unpriced += finding.cost is None and finding.missed_tokens > 0
        if self.worst is None or finding.missed_tokens > self.worst.missed_tokens:
            self.worst = finding

    def to_json(self) -> dict[str, Any]:
        """Itself, as ``kvikk audit --json`` prints it."""
        return {
            "findings": self.findings,
            "missed_tokens": self.missed_tokens,
            "cost": None if self.unpriced else round(self.cost, 9),
            "cost_in_input_tokens": round(self.cost_in_input_tokens, 3),
        }


@dataclass
class Reconciliation:
    """The provider's counts beside those by the rules, over requests where it gives them."""

    requests: int = 0
    reported_read: int = 0
    ruled_read: int = 0
    reported_written: int = 0
    ruled_written: int = 0
    agreeing: int = 0

    def add(self, account: Account) -> None:
        """Count one request, if its provider says what was read."""
        if account.reported_read is None or not account.rules_known:
            return
        self.requests += 1
        self.reported_read += account.reported_read
        self.ruled_read += account.read
        self.reported_written += account.reported_written or 0
        self.ruled_written += 0 if account.reported_written is None else account.written
        self.agreeing += abs(account.reported_read - account.read) <= 0.05 * account.input_tokens

    def to_json(self) -> dict[str, Any]:
        """Itself, as ``kvikk audit --json`` prints it."""
        return {
            "requests": self.requests,
            "agreeing": self.agreeing,
            "reported": {"read": self.reported_read, "written": self.reported_written},
            "by_rules": {"read": self.ruled_read, "written": self.ruled_written},
            "difference": {
                "read": self.reported_read - self.ruled_read,
                "written": self.reported_written - self.ruled_written,
            },
        }


@dataclass
class Totals:
    """The sums of one log. Findings and accounts wait in files without a name, not in memory."""

    requests: int = 0
    failed: int = 0
    uncounted: int = 0
    input_tokens: int = 0
    hit_tokens: int = 0
    cost: float = 0.0
    uncached_cost: float = 0.0
    unpriced: int = 0
    causes: dict[str, CauseTotal] = field(default_factory=dict)
    reconciliation: Reconciliation = field(default_factory=Reconciliation)
    assumed: dict[str, int] = field(default_factory=dict)
    _findings: IO[bytes] = field(default_factory=lambda: _nameless(), repr=False)
    _accounts: IO[bytes] | None = field(default=None, repr=False)

    def keep_accounts(self) -> None:
        """Keep each request's account too, for ``accounts``."""
        self._accounts = _nameless()

    def add(self, audited: Audited) -> None:
        """Count one request and its findings."""
        account = audited.account
        self.requests += 1
        self.input_tokens += account.input_tokens
        self.hit_tokens += account.hit_tokens
        self.failed += not account.parts
        self.uncounted += bool(account.parts) and not account.counted
        if account.cost is None:
            self.unpriced += bool(account.parts)
        else:
            self.cost += account.cost
            self.uncached_cost += account.uncached_cost or 0.0
        if not account.rules_known and account.parts:
            self.assumed[account.model] = self.assumed.get(account.model, 0) + 1
        self.reconciliation.add(account)
        if self._accounts is not None:
            self._accounts.write(orjson.dumps(account.to_json()) + b"\n")
        for finding in audited.findings:
            self.find(finding)

    def find(self, finding: Finding) -> None:
        """Count one finding."""
        self.causes.setdefault(finding.cause, CauseTotal()).add(finding)
        self._findings.write(orjson.dumps(finding.to_json()) + b"\n")

    @property
    def hit_rate(self) -> float:
        """Reused tokens of all input tokens; 0 of none."""
        return self.hit_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def missed_tokens(self) -> int:
        """Tokens that could have been reused and were not, and that a mend would bring back."""
        return sum(
            total.missed_tokens for cause, total in self.causes.items() if not is_expected(cause)
        )

    @property
    def missed_cost(self) -> float | None:
        """What they cost in US dollars; None if a price is missing."""
        mended = [total for cause, total in self.causes.items() if not is_expected(cause)]
        if any(total.unpriced for total in mended):
            return None
        return sum(total.cost for total in mended)

    def by_cost(self) -> list[tuple[str, CauseTotal]]:
        """Causes, the dearest first: in dollars if all have a price, else in input tokens' worth.

        Misses by design come last.
        """
        priced = not any(total.unpriced for total in self.causes.values())

        def rank(one: tuple[str, CauseTotal]) -> tuple[bool, float, int, str]:
            cause, total = one
            cost = total.cost if priced else total.cost_in_input_tokens
            return is_expected(cause), -cost, -total.missed_tokens, cause

        return sorted(self.causes.items(), key=rank)

    def findings(self) -> Iterator[dict[str, Any]]:
        """All findings, in the order of the log."""
        return _read(self._findings)

    def accounts(self) -> Iterator[dict[str, Any]]:
        """All accounts, if they were kept."""
        return iter(()) if self._accounts is None else _read(self._accounts)


def _nameless() -> IO[bytes]:
    """A file that goes with the last who knows it."""
    return tempfile.TemporaryFile()


def _read(file: IO[bytes]) -> Iterator[dict[str, Any]]:
    file.seek(0)
    for line in file:
        yield orjson.loads(line)
    file.seek(0, 2)
