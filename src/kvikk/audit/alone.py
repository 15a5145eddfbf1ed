"""What one request shows by itself: markers that are refused or lost, counters that are wrong."""

from collections.abc import Iterator
from itertools import pairwise

from kvikk.audit.boundaries import markers
from kvikk.audit.exchange import Exchange
from kvikk.audit.missed import Cause
from kvikk.audit.prompt import Prompt, Slot, pieces
from kvikk.audit.provider import Rules
from kvikk.pricing.caching import Breakpoints
from kvikk.pricing.problems import Problem, problems
from kvikk.pricing.prompt import ProviderPrompt
from kvikk.wire.segments_any import segments


def refused(exchange: Exchange, prompt: Prompt, rules: Rules, seen: ProviderPrompt) -> list[Cause]:
    """What the provider refuses, or would if it were asked."""
    if exchange.status is not None and exchange.status < 400:
        return []
    found: dict[str, Problem] = {}
    for problem in problems(rules.caching, seen):
        found.setdefault(problem.kind, problem)
    causes = []
    if (order := found.get("order")) is not None:
        causes.append(Cause("breakpoint.ttl_order", f"{order.path}.ttl", 0, 0, note=order.message))
    if (number := found.get("number")) is not None:
        path = _least_useful(prompt) or number.path
        causes.append(Cause("breakpoint.too_many", path, 0, 0, note=number.message))
    return causes


def contradictions(exchange: Exchange) -> Iterator[Cause]:
    """Counters of the answer that cannot be right."""
    for wrong in exchange.usage.contradictions:
        yield Cause("accounting.normalisation", wrong.path, 0, 0, note=wrong.reason)


def lost_marker(exchange: Exchange, prompt: Prompt, rules: Rules) -> Cause | None:
    """A marker that the application set and the provider did not get."""
    usage = exchange.usage
    cached = (usage.read_tokens or 0) + (usage.written_tokens or 0)
    if cached or not isinstance(rules.caching.scheme, Breakpoints):
        return None
    if exchange.upstream is not None:
        sent = pieces(segments(exchange.api, exchange.body))
        kept = {prompt.slots[index].piece.text for index in markers(prompt)}
        for index in markers(sent):
            slot = sent.slots[index]
            if slot.piece.text not in kept and slot.marker is not None:
                return Cause("breakpoint.dropped_by_gateway", slot.marker.path, 0, 0)
        return None
    marked = markers(prompt)
    reported = usage.read_tokens == 0 and usage.written_tokens == 0
    if not reported or not marked or not rules.known or exchange.provider == "self_hosted":
        return None
    if prompt.tokens_at(prompt.ends[marked[-1]]) < rules.caching.minimum_tokens:
        return None
    marker = prompt.slots[marked[-1]].marker
    note = "the provider neither read nor wrote, so it saw no marker"
    path = "$" if marker is None else marker.path
    return Cause("breakpoint.dropped_by_gateway", path, 0, 0, note=note)


def _least_useful(prompt: Prompt) -> str:
    """Of too many markers, the one that is least missed: another one follows in its section.

    A marker for the whole request goes first; then, in tools and system, then in one message, one
    that another follows; then the one on the tools, which the one behind the system covers.
    """
    marked = [prompt.slots[index] for index in markers(prompt)]
    automatic = [slot for slot in marked if slot.marker and slot.marker.path == "$.cache_control"]
    followed = [one for one, other in pairwise(marked) if _place(one) == _place(other)]
    static = [slot for slot in followed if slot.section != "messages"]
    tools = [slot for slot in marked if slot.section == "tools"]
    for slots in (automatic, static, followed, tools):
        if slots and slots[0].marker is not None:
            return slots[0].marker.path
    return ""


def _place(slot: Slot) -> tuple[str, int | None]:
    return slot.section, slot.message
