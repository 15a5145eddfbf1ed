"""Audits one exchange at a time, beside all that came before it."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from kvikk.audit.accounts import audited, finding_of, first_request
from kvikk.audit.alone import contradictions, lost_marker, refused
from kvikk.audit.boundaries import markers
from kvikk.audit.content import changed_content
from kvikk.audit.difference import Divergence, divergence
from kvikk.audit.exchange import Exchange
from kvikk.audit.findings import Account, Audited, Finding
from kvikk.audit.pair import Pair
from kvikk.audit.parameters import parameters
from kvikk.audit.prompt import Prompt, anchored, counted
from kvikk.audit.provider import Providers, Rules, provider_prompt
from kvikk.audit.replayed import KEEPS_ANSWERS, answer_slots
from kvikk.audit.window import Earlier, Sibling, Window, remembered
from kvikk.pricing.decision import Decision
from kvikk.wire.segments_any import segments

# A request with so little in common with any other has none that it should have shared with.
_LEAST_SHARED_WEIGHT = 16.0
# What a request shares with one under the same model may be so much less than the most there is.
_RATHER_SAME_MODEL = 0.7
_AS_GOOD = 0.98
_MOST_COMPARED = 8
_MINUTE_S = 60.0
# So many requests within a minute say how many there are a minute.
_FEW_REQUESTS = 4
_ARMS_APART = 10


class Auditor:
    """Feed it the exchanges of a log in the order in which they were sent; ``close`` at the end."""

    def __init__(self, window: Window | None = None) -> None:
        self._window = window or Window()
        self._providers = Providers()
        self._key_times: dict[str, deque[float]] = {}
        self._alone: dict[int, tuple[Earlier, Rules]] = {}

    def feed(self, exchange: Exchange) -> Audited:
        """Audit one request beside all that were fed before it, and remember it."""
        prompt = self._window.prompt(segments(exchange.seen_api, exchange.seen))
        found = parameters(exchange.seen_api, exchange.seen)
        siblings = [] if exchange.failed else self._window.siblings(exchange, prompt)
        places = {
            id(one): divergence(one.earlier.prompt, prompt) for one in siblings[:_MOST_COMPARED]
        }
        siblings = siblings[:_MOST_COMPARED]
        prompt = _counted(exchange, prompt, siblings, places)
        rules = self._providers.rules(exchange, prompt)
        seen = provider_prompt(exchange, prompt, found)
        alone = [*refused(exchange, prompt, rules, seen), *contradictions(exchange)]
        if exchange.failed:
            findings = tuple(finding_of(exchange, cause, None) for cause in alone)
            return Audited(Account(exchange.index, 0, {}, counted=False), findings)
        decision = self._providers.bill(exchange, rules, seen)
        if (lost := lost_marker(exchange, prompt, rules)) is not None:
            alone.append(lost)
        sibling = _choose(siblings, exchange, found, places)
        pair = None
        if sibling is not None:
            pair = self._pair(exchange, prompt, found, rules, decision, sibling, siblings, places)
        result = audited(exchange, prompt, rules, decision, pair, alone)
        self._remember(exchange, prompt, found, rules, pair)
        return result

    def close(self) -> Iterator[Finding]:
        """At the end of a log: requests that were written to the cache and whose text never came
        again, which is no fault of theirs.
        """
        for earlier, rules in self._alone.values():
            yield from first_request(earlier, rules)
        self._alone.clear()

    def _pair(
        self,
        exchange: Exchange,
        prompt: Prompt,
        found: dict[str, object],
        rules: Rules,
        decision: Decision,
        sibling: Sibling,
        siblings: list[Sibling],
        places: dict[int, Divergence],
    ) -> Pair:
        place = places[id(sibling)]
        shared = prompt.tokens_at(prompt.at(place.index, place.character))
        reported = exchange.usage.read_tokens
        hit = decision.read_tokens if reported is None else reported
        forced = isinstance(exchange.seen.get("tool_choice"), dict)
        pair = Pair(
            earlier=sibling.earlier,
            exchange=exchange,
            prompt=prompt,
            parameters=found,
            place=place,
            shared=shared,
            hit=min(hit, prompt.num_tokens),
            rules=rules,
            decision=decision,
            content=changed_content(sibling.earlier.prompt, prompt, place, forced_tool=forced),
            key_rate=self._key_rate(exchange),
        )
        as_long = [
            one
            for one in siblings
            if prompt.tokens_at(prompt.at(places[id(one)].index, places[id(one)].character))
            >= shared - pair.slack
        ]
        return replace(
            pair,
            seen_before=len(as_long),
            other_arm=any(_is_other_arm(pair, one.earlier) for one in siblings),
        )

    def _key_rate(self, exchange: Exchange) -> int:
        """Requests with this cache key a minute, over the minute that ends with this one."""
        key = str(exchange.seen.get("prompt_cache_key") or "")
        if not key or exchange.at_s is None:
            return 0
        times = self._key_times.setdefault(key, deque(maxlen=256))
        times.append(exchange.at_s)
        while times and times[0] <= exchange.at_s - _MINUTE_S:
            times.popleft()
        span_s = max(1.0, exchange.at_s - times[0])
        in_a_row = len(times) >= _FEW_REQUESTS
        return max(len(times), round((len(times) - 1) / span_s * _MINUTE_S) if in_a_row else 0)

    def _remember(
        self,
        exchange: Exchange,
        prompt: Prompt,
        found: dict[str, object],
        rules: Rules,
        pair: Pair | None,
    ) -> None:
        keeps = exchange.provider in KEEPS_ANSWERS
        answer = answer_slots(exchange.seen_api, exchange.response) if keeps else ()
        earlier = remembered(exchange, prompt, found, answer)
        if pair is None:
            self._alone[id(earlier)] = (earlier, rules)
        else:
            self._alone.pop(id(pair.earlier), None)
        for gone in self._window.add(earlier):
            self._alone.pop(id(gone), None)


def _counted(
    exchange: Exchange,
    prompt: Prompt,
    siblings: list[Sibling],
    places: dict[int, Divergence],
) -> Prompt:
    """With the scale of the request of the same model that has the longest common beginning."""

    def shared(one: Sibling) -> float:
        place = places[id(one)]
        return prompt.at(place.index, place.character)

    same = [one for one in siblings if one.earlier.exchange.model == exchange.model]
    nearest = max(same or siblings, key=shared, default=None)
    usage = exchange.usage
    if nearest is None:
        return counted(prompt, usage.input_tokens)
    found = counted(prompt, usage.input_tokens, nearest.earlier.prompt, shared(nearest))
    if not usage.read_tokens or usage.input_tokens is None:
        return found
    # What was read ends at a marker: a weight of which the tokens are known.
    known = [*markers(prompt), *markers(nearest.earlier.prompt, places[id(nearest)].index)]
    return anchored(found, [prompt.ends[index] for index in known], usage.read_tokens)


def _choose(
    siblings: list[Sibling],
    exchange: Exchange,
    found: dict[str, object],
    places: dict[int, Divergence],
) -> Sibling | None:
    """The request to compare with: the one with most text in common, and of those that are as good
    the one that is most alike otherwise, then the newest.
    """
    if not siblings or siblings[0].shared_weight < _LEAST_SHARED_WEIGHT:
        return None
    best = siblings[0].shared_weight
    same_model = [
        one
        for one in siblings
        if one.earlier.exchange.model == exchange.model
        and one.shared_weight >= _RATHER_SAME_MODEL * best
    ]
    candidates = same_model or siblings
    most = candidates[0].shared_weight

    def rank(one: Sibling) -> tuple[int, int, int, int]:
        earlier, place = one.earlier, places[id(one)]
        alike = (
            (earlier.exchange.account == exchange.account)
            + (earlier.exchange.host == exchange.host)
            + (earlier.exchange.model == exchange.model)
            + (earlier.parameters == found)
        )
        return alike, place.index, place.character, earlier.exchange.index

    return max((one for one in candidates if one.shared_weight >= _AS_GOOD * most), key=rank)


def _is_other_arm(pair: Pair, other: Earlier) -> bool:
    """Whether ``other`` is the same prompt, sent in between, under what makes it another arm."""
    before, now, between = pair.earlier, pair.exchange, other.exchange
    if not pair.prompt.chain or other.prompt.chain[-1:] != pair.prompt.chain[-1:]:
        return False
    in_between = before.exchange.index < between.index >= now.index - _ARMS_APART
    first_of_its_arm = before.prompt.chain[-1:] != pair.prompt.chain[-1:]
    is_other = between.model != now.model or other.parameters != pair.parameters
    return in_between and first_of_its_arm and is_other
