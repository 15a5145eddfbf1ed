"""From the engine's books to what is sent: one request, or totals, for one reader.

A reader is a tenant, or None: the operator. Everything here runs where the books live, in the
engine's thread; what comes back is plain and may go anywhere.
"""

from collections.abc import Mapping
from typing import Any

from kvikk.cache.ledger.records import Span
from kvikk.engine.accounts import Account, Totals
from kvikk.engine.books import MEMORY_SHARES, Books
from kvikk.engine.story import Storyteller
from kvikk.wire.ledger import LedgerFinding, LedgerSpan, LedgerStory, RequestLedger


def request_ledger(
    books: Books, account: Account, tenant: str | None, *, with_story: bool = False
) -> RequestLedger:
    """One request's ledger. With its story, what differs in front of moved runs is told as text."""
    teller = books.teller(tenant)
    return RequestLedger(
        account.request_id,
        account.origin.model,
        account.origin.tenant,
        account.origin.route,
        account.at_s,
        account.ledger.num_tokens,
        tuple(_span(teller, account, span, with_story) for span in teller.spans(account)),
        _story(teller, account) if with_story else None,
    )


def ledger_totals(
    books: Books, window_s: float, by: str | None, tenant: str | None
) -> dict[str, Any]:
    """Totals of the last ``window_s`` seconds, grouped ``by`` a field of an origin as well.

    What other amounts of memory would hit is of all tenants' requests, since the start, and so
    for the operator alone.
    """
    accounts = books.accounts
    totals = {"window": window_s, **_totals(accounts.totals(window_s, tenant))}
    if by is not None:
        groups = accounts.totals_by(by, window_s, tenant)
        totals |= {"by": by, "groups": {name: _totals(group) for name, group in groups.items()}}
    history = [
        {
            "at": start_s,
            "requests": minute.requests,
            "prompt_tokens": minute.prompt_tokens,
            "by_cause": _by_cause(minute),
        }
        for start_s, minute in accounts.history(window_s, tenant)
    ]
    return totals | {"history": history, "what_if": _what_if(books) if tenant is None else []}


def _span(teller: Storyteller, account: Account, span: Span, with_text: bool) -> LedgerSpan:
    detail = span.detail
    told: dict[str, Any] = {
        "request": teller.name(detail.sequence),
        "waited": detail.waited or None,
        "seconds_ago": detail.seconds_ago,
        "more_blocks": detail.more_blocks,
        "group": detail.group,
        "window_tokens": teller.window_tokens(span),
        "part": detail.part,
        "tier": detail.tier,
        "differs_at": detail.differs_at,
    }
    found = teller.difference(account, span) if with_text else None
    if found is not None and detail.differs_at is not None:
        part = teller.part(account, detail.differs_at)
        told |= {
            "value": found.value,
            "seen_value": found.other,
            "kind": found.kind.value,
            "where": None if part is None else part.name,
        }
    known = {name: value for name, value in told.items() if value is not None}
    return LedgerSpan(span.start, span.stop, span.cause.value, known)


def _story(teller: Storyteller, account: Account) -> LedgerStory:
    story = teller.tell(account)
    findings = (
        LedgerFinding(
            finding.cause.value, finding.start, finding.tokens, finding.text, finding.mend
        )
        for finding in story.findings
    )
    return LedgerStory(story.headline, tuple(findings))


def _totals(totals: Totals) -> Mapping[str, Any]:
    rates = totals.rates
    return {
        "requests": totals.requests,
        "prompt_tokens": totals.prompt_tokens,
        "by_cause": _by_cause(totals),
        "rates": {
            "achieved": rates.achieved,
            "attainable_by_operator": rates.attainable_by_operator,
            "attainable_by_author": rates.attainable_by_author,
        },
    }


def _by_cause(totals: Totals) -> dict[str, int]:
    return {cause.value: tokens for cause, tokens in totals.by_cause.items()}


def _what_if(books: Books) -> list[dict[str, Any]]:
    return [
        {
            "num_blocks": what_if.num_blocks,
            "share": float(share),
            "eviction": what_if.eviction,
            "prompt_tokens": what_if.prompt_tokens,
            "hit_tokens": what_if.hit_tokens,
        }
        for share, what_if in zip(MEMORY_SHARES, books.what_if(), strict=True)
    ]
