"""Why tokens of a common beginning were not read: one cause, in the order in which they hold.

account, host, model, parameters, key → minimum → lifetime and overlap → boundary → content →
unexplained. What a later cause would explain as well is not asked once an earlier one does.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kvikk.audit.boundaries import changed_boundary, longest_piece, markers
from kvikk.audit.exchange import Exchange
from kvikk.audit.pair import Pair
from kvikk.audit.parameters import ParameterChange, changes
from kvikk.audit.provider import rule_name
from kvikk.pricing.caching import Breakpoints, MessageEnds, Steps
from kvikk.pricing.decision import Reason
from kvikk.wire.segments_json import mapping

_OPENAI = ("openai", "azure")
_KEY = "$.prompt_cache_key"
_RETENTION = "$.prompt_cache_retention"
_TTL = "$.prompt_cache_options.ttl"
_MOST_A_MINUTE_AND_KEY = 15


@dataclass(frozen=True, slots=True)
class Cause:
    """Tokens ``start … stop - 1`` were missed for one reason."""

    cause: str
    path: str
    start: int
    stop: int
    before: str = ""
    after: str = ""
    note: str = ""


def everything_changed(pair: Pair) -> Cause | None:
    """Another account, host or model: nothing could be shared, whatever the texts."""
    before, after = pair.earlier.exchange, pair.exchange
    if before.account and after.account and before.account != after.account:
        return _whole(pair, "routing.account_rotated", "$", before.account, after.account)
    if before.host and after.host and before.host != after.host:
        return _whole(pair, "routing.upstream_switched", "$", before.host, after.host)
    if before.model != after.model:
        return _whole(pair, "model.switched", "$.model", before.model, after.model)
    was, now = _answered_by(before), _answered_by(after)
    if was and now and was != now:
        note = "the request names the same model; the answers come from two"
        return _whole(pair, "model.switched", "$.model", was, now, note)
    return None


def missed(pair: Pair) -> Iterator[Cause]:
    """The causes of the tokens from ``hit`` up to ``shared``, in order and without a gap."""
    if pair.shared - pair.hit < pair.slack:
        return
    start = pair.hit
    for look in (_parameters, _key, _lifetime_changed):
        if (found := look(pair)) is not None:
            yield found
            return
    if (found := _below_minimum(pair)) is not None:
        yield found
        start = found.stop
        if start >= pair.shared - pair.slack:
            return
    yield from _from(pair, start)


def _from(pair: Pair, start: int) -> Iterator[Cause]:
    """What is left once nothing of all prompts, and no minimum, is the reason."""
    for look in (_expired, _raced):
        if (found := look(pair, start)) is not None:
            yield found
            return
    content = pair.content
    if content is not None and not (content.whole_piece and _is_marked_on(pair)):
        return  # what changed is the cause of these tokens too; they are counted with it
    if (boundary := changed_boundary(pair)) is not None:
        yield Cause(boundary.cause, boundary.path, start, pair.shared, note=boundary.note)
    elif content is None and pair.reported and _is_held(pair):
        yield _although_held(pair, start)


def _is_held(pair: Pair) -> bool:
    """Whether the rules say that much more should have been read than was."""
    return pair.decision.read_tokens - pair.hit >= pair.slack


def _parameters(pair: Pair) -> Cause | None:
    found = list(changes(pair.exchange.seen_api, pair.earlier.parameters, pair.parameters))
    if not found:
        return None
    if not pair.reported:  # only those that the rules know of are sure to matter
        found = [change for change in found if _matters(pair, change)]
        if not found:
            return None
    order = ("params.thinking", "params.effort")
    change = min(found, key=lambda one: one.cause not in order)
    return _whole(pair, change.cause, change.path, str(change.before), str(change.after))


def _matters(pair: Pair, change: ParameterChange) -> bool:
    name = rule_name(change.name)
    return any(name in names for names in pair.rules.caching.parameters.values())


def _key(pair: Pair) -> Cause | None:
    before, after = (
        str(exchange.seen.get("prompt_cache_key") or "")
        for exchange in (pair.earlier.exchange, pair.exchange)
    )
    if before == after or pair.exchange.provider not in (*_OPENAI, "other"):
        return None
    if not after:
        return _whole(pair, "routing.key_missing", _KEY, before, after)
    return _whole(pair, "routing.key_volatile", _KEY, before, after)


def _lifetime_changed(pair: Pair) -> Cause | None:
    """Entries of one lifetime were not read by a request for another: observed, not documented."""
    if not pair.reported or pair.decision.read_tokens - pair.hit < pair.slack:
        return None
    caching = pair.rules.caching
    note = "observed, not documented: an entry of one lifetime is not read for another"
    if isinstance(caching.scheme, Breakpoints):
        theirs = [slot.marker for slot in pair.earlier.prompt.slots if slot.marker is not None]
        ours = [slot.marker for slot in pair.prompt.slots if slot.marker is not None]
        old = {caching.lifetime_name(marker.ttl) for marker in theirs}
        new = {caching.lifetime_name(marker.ttl) for marker in ours}
        if old and new and old != new:
            changed = [one for one in theirs if caching.lifetime_name(one.ttl) not in new]
            path = f"{(changed or theirs)[-1].path}.ttl"
            return _whole(pair, "ttl.tier_changed", path, _listed(old), _listed(new), note)
        return None
    for path in (_RETENTION, _TTL):
        before, after = (
            asked(exchange, path) for exchange in (pair.earlier.exchange, pair.exchange)
        )
        if before != after:
            return _whole(pair, "ttl.tier_changed", path, before, after, note=note)
    return None


def _below_minimum(pair: Pair) -> Cause | None:
    caching = pair.rules.caching
    minimum = caching.minimum_tokens
    if isinstance(caching.scheme, Steps):
        minimum = max(minimum, caching.scheme.step_tokens - caching.scheme.hidden_tokens)
    marked = isinstance(caching.scheme, Breakpoints)
    if pair.shared < minimum and pair.content is None:
        # So short a beginning that it is no part of anybody's plan is no finding.
        planned = pair.shared * 4 >= minimum and (not marked or markers(pair.prompt))
        return _minimum(pair, pair.shared, minimum) if planned else None
    short = [
        pair.prompt.tokens_at(pair.prompt.ends[index])
        for index, slot in enumerate(pair.prompt.slots[: pair.place.index])
        if slot.marker is not None
    ]
    if marked and short and pair.hit < max(short) < minimum:
        return _minimum(pair, max(short), minimum)
    return None


def _minimum(pair: Pair, stop: int, minimum: int) -> Cause:
    path = longest_piece(pair.prompt, stop)
    note = f"{stop:,} tokens; nothing under {minimum:,} is cached"
    return Cause("below_minimum", path, pair.hit, max(stop, pair.hit), note=note)


def _is_marked_on(pair: Pair) -> bool:
    """Whether the piece that changes is one on which a marker stands."""
    slots = pair.earlier.prompt.slots
    index = pair.place.index
    return index < len(slots) and slots[index].marker is not None


def _expired(pair: Pair, start: int) -> Cause | None:
    stop = max(
        (span.stop for span in pair.decision.spans if span.reason == Reason.EXPIRED), default=0
    )
    if stop <= start:
        return None
    before, after = pair.earlier.exchange.at_s, pair.exchange.at_s
    age = "" if before is None or after is None else f"{after - before:,.0f} s after it"
    return Cause("ttl.expired", _lifetime_path(pair), start, pair.shared, after=age)


def _raced(pair: Pair, start: int) -> Cause | None:
    if all(span.reason != Reason.NOT_READABLE_YET for span in pair.decision.spans):
        return None
    return Cause("concurrency.cold_race", "$", start, pair.shared)


def _lifetime_path(pair: Pair) -> str:
    """Where the lifetime of what was to be read is asked for."""
    match pair.rules.caching.scheme:
        case Breakpoints():
            held = [slot.marker for slot in pair.earlier.prompt.slots[: pair.place.index]]
            paths = [marker.path for marker in held if marker is not None]
            return f"{paths[-1]}.ttl" if paths else "$"
        case MessageEnds():
            return _TTL
        case Steps() if pair.exchange.provider in _OPENAI:
            return _RETENTION
        case _:
            return "$"


def _although_held(pair: Pair, start: int) -> Cause:
    """The rules say that it should have been read, and the provider says that it was not."""
    body = pair.exchange.seen
    if pair.exchange.provider in _OPENAI:
        if not body.get("prompt_cache_key"):
            return Cause("routing.key_missing", _KEY, start, pair.shared)
        if pair.key_rate > _MOST_A_MINUTE_AND_KEY:
            note = f"{pair.key_rate} requests a minute with this key"
            return Cause("routing.key_shared_overflow", _KEY, start, pair.shared, note=note)
    images = [
        [slot for slot in prompt.slots if slot.kind == "image"]
        for prompt in (pair.earlier.prompt, pair.prompt)
    ]
    if isinstance(pair.rules.caching.scheme, Breakpoints) and bool(images[0]) != bool(images[1]):
        path = (images[1] or images[0])[0].path
        return Cause("history.images_changed", path, start, pair.shared)
    return Cause("provider.unexplained", "$", start, pair.shared)


def _whole(pair: Pair, cause: str, path: str, before: str, after: str, note: str = "") -> Cause:
    return Cause(cause, path, pair.hit, pair.shared, before, after, note)


def asked(exchange: Exchange, path: str) -> str:
    """A text in a request's body."""
    value: object = exchange.seen
    for name in path.split(".")[1:]:
        value = mapping(value).get(name)
    return str(value or "")


def _answered_by(exchange: Exchange) -> str:
    answer = exchange.response or {}
    model = answer.get("model", answer.get("modelVersion"))
    return model if isinstance(model, str) else ""


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))
