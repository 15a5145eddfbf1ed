"""One request's account and findings, with its money, from what is known of it."""

from collections.abc import Iterator

from kvikk.audit.advice import mend
from kvikk.audit.boundaries import longest_piece, markers
from kvikk.audit.exchange import Exchange
from kvikk.audit.findings import BEHIND_BOUNDARY, HIT, NEW, Account, Audited, Finding
from kvikk.audit.missed import Cause
from kvikk.audit.money import account_money, missed_money
from kvikk.audit.pair import Pair
from kvikk.audit.prompt import Prompt
from kvikk.audit.provider import Rules
from kvikk.audit.settle import causes
from kvikk.audit.window import Earlier
from kvikk.pricing.caching import Breakpoints
from kvikk.pricing.decision import Decision


def audited(
    exchange: Exchange,
    prompt: Prompt,
    rules: Rules,
    decision: Decision,
    pair: Pair | None,
    alone: list[Cause],
) -> Audited:
    """The account of a request and what was found: ``alone`` shows without any other request."""
    total = prompt.num_tokens
    reported = exchange.usage.read_tokens
    hit = min(total, decision.read_tokens if reported is None else reported)
    found: list[tuple[Cause, int]] = []
    shared = hit
    if pair is not None:
        shared = max(hit, pair.shared)
        found = [(cause, tokens) for cause, tokens in causes(pair) if tokens > 0]
    parts = {HIT: hit} if hit else {}
    for cause, tokens in found:
        parts[cause.cause] = parts.get(cause.cause, 0) + tokens
    rest = total - sum(parts.values())
    inside = max(0, min(rest, shared - hit - sum(_within(one, hit, shared) for one, _ in found)))
    if inside:
        parts[BEHIND_BOUNDARY] = inside
    if rest - inside:
        parts[NEW] = rest - inside
    money = account_money(exchange, rules, decision, total)
    account = Account(
        request=exchange.index,
        input_tokens=total,
        parts=parts,
        counted=exchange.usage.input_tokens is not None,
        model=exchange.model,
        read=decision.read_tokens,
        written=decision.written_tokens,
        plain=decision.plain_tokens,
        reported_read=reported,
        reported_written=exchange.usage.written_tokens,
        rules=rules.name,
        rules_known=rules.known,
        cost=money.cost,
        cost_in_input_tokens=money.relative,
        uncached_cost=money.uncached,
    )
    findings = [
        missed_money(finding_of(exchange, cause, pair, tokens), exchange, rules, decision, cause)
        for cause, tokens in found
    ]
    findings += [finding_of(exchange, cause, None) for cause in alone]
    if pair is not None and (arm := _contaminated(pair)) is not None:
        findings.append(finding_of(exchange, arm, pair))
    findings.sort(key=lambda one: -one.missed_tokens)
    return Audited(account, tuple(findings))


def first_request(earlier: Earlier, rules: Rules) -> Iterator[Finding]:
    """A miss by design: a text that could be cached, was not there before and never came again."""
    exchange, prompt = earlier.exchange, earlier.prompt
    if exchange.usage.read_tokens or prompt.num_tokens < rules.caching.minimum_tokens:
        return
    if isinstance(rules.caching.scheme, Breakpoints) and not markers(prompt):
        return
    if not rules.known:
        return
    yield finding_of(exchange, Cause("expected.first_request", "$", 0, 0), None)


def finding_of(exchange: Exchange, cause: Cause, pair: Pair | None, tokens: int = 0) -> Finding:
    """The finding that a cause of ``tokens`` is."""
    return Finding(
        request=exchange.index,
        cause=cause.cause,
        location=cause.path,
        missed_tokens=tokens,
        mend=mend(cause.cause, cause.after),
        sibling=None if pair is None else pair.earlier.exchange.index,
        before=cause.before,
        after=cause.after,
        character=_character(pair, cause),
        common_end=_common_end(pair),
        note=cause.note,
        id=exchange.id,
        model=exchange.model,
        provider=exchange.provider,
    )


def _character(pair: Pair | None, cause: Cause) -> int | None:
    """Where a text first differs, if the cause is a text."""
    if pair is None or not cause.path.startswith("$."):
        return None
    if pair.content is not None and pair.content.cause == cause.cause:
        return pair.content.character
    is_boundary = cause.cause.startswith("breakpoint.")
    return pair.place.character if is_boundary and pair.place.character else None


def _common_end(pair: Pair | None) -> str:
    """The path of the last piece of the common beginning."""
    if pair is None or pair.place.index == 0:
        return ""
    return pair.prompt.slots[pair.place.index - 1].path


def _contaminated(pair: Pair) -> Cause | None:
    """A hit that an earlier run earned: two arms of an experiment without a nonce of their own."""
    if not pair.other_arm or not pair.exchange.usage.read_tokens:
        return None
    path = longest_piece(pair.prompt, pair.shared)
    note = "an earlier run had sent this beginning; without a nonce no arm is cold"
    return Cause("experiment.contaminated", path, 0, 0, note=note)


def _within(cause: Cause, hit: int, shared: int) -> int:
    return max(0, min(cause.stop, shared) - max(cause.start, hit))
