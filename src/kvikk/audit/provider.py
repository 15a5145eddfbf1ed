"""A provider's cache imagined over a log: what it would have read, by the dated rules of pricing.

Where no rules are known it is taken to behave like most: markers count where there are any, whole
prefixes where there are none, as on a server of one's own, and nothing expires.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from hashlib import blake2b

from kvikk.audit.exchange import Exchange
from kvikk.audit.prompt import Prompt
from kvikk.errors import ModelError
from kvikk.pricing.caching import Breakpoints, Caching, Lifetime, Steps
from kvikk.pricing.decision import Decision
from kvikk.pricing.prices import PriceList
from kvikk.pricing.prompt import Marker, Position, ProviderPrompt
from kvikk.pricing.provider_cache import ProviderCache
from kvikk.pricing.registry import find
from kvikk.pricing.unknown import Unknown
from kvikk.wire.segments_json import dump

_FOREVER = Lifetime(float("inf"))
_PREFIXES = Caching(Steps(64), 1, {"": _FOREVER})
_MARKERS = Caching(Breakpoints(), 1024, {"5m": _FOREVER, "1h": _FOREVER}, bills_writes=True)
# A day in 2001: earlier times are no dates but seconds of a test.
_FIRST_DATE_S = 1e9
# Without a time of its own a response is taken to begin so much later.
_FIRST_BYTE_AFTER_S = 1.0
# No model takes more: what is longer is not looked at between its pieces.
_LONGEST_CONTEXT_TOKENS = 2_000_000

_NAMES = {
    "$.reasoning_effort": "reasoning_effort",
    "$.reasoning.effort": "reasoning_effort",
    "$.output_config.effort": "effort",
    "$.additionalModelRequestFields.output_config.effort": "effort",
    "$.verbosity": "verbosity",
    "$.text.verbosity": "verbosity",
    "$.response_format": "text_format",
    "$.text.format": "text_format",
    "$.generationConfig.responseSchema": "response_schema",
    "$.generationConfig.responseJsonSchema": "response_schema",
    "$.generation_config.response_schema": "response_schema",
    "$.tool_choice": "tool_choice",
    "$.toolConfig.toolChoice": "tool_choice",
    "$.thinking": "thinking",
    "$.additionalModelRequestFields.thinking": "thinking",
    "$.additionalModelRequestFields.reasoning_config": "thinking",
    "$.parallel_tool_calls": "parallel_tool_calls",
    "$.context_management": "context_management",
    "$.service_tier": "service_tier",
    "$.speed": "speed",
}


@dataclass(frozen=True)
class Rules:
    """What is known of a model's cache and prices. ``known`` is False where it was assumed."""

    name: str
    caching: Caching
    prices: PriceList | None
    known: bool
    notes: tuple[str, ...] = ()


class Providers:
    """The caches of all models in a log, imagined; one of each set of rules."""

    def __init__(self) -> None:
        self._rules: dict[tuple[str, str, date | None, bool], Rules] = {}
        self._caches: dict[str, ProviderCache] = {}

    def rules(self, exchange: Exchange, prompt: Prompt) -> Rules:
        """The rules for one request, as of its day."""
        marked = any(slot.marker is not None for slot in prompt.slots)
        key = (exchange.provider, exchange.model, _day(exchange.at_s), marked)
        if key not in self._rules:
            self._rules[key] = _find(*key)
        return self._rules[key]

    def bill(self, exchange: Exchange, rules: Rules, seen: ProviderPrompt) -> Decision:
        """What would have been read of a request, after all that were billed before it."""
        cache = self._caches.get(rules.name)
        if cache is None or cache.caching != rules.caching:
            cache = ProviderCache(rules.caching, tells_accounts=True)
            self._caches[rules.name] = cache
        started_s = exchange.at_s if exchange.at_s is not None else exchange.index * 1e-3
        return cache.bill(seen, started_s=started_s, first_byte_s=readable_s(exchange, started_s))


def readable_s(exchange: Exchange, started_s: float) -> float:
    """When a response began. Logs give that as a time, or as seconds after the start."""
    if exchange.at_s is None:
        return started_s
    if exchange.first_byte_s is None:
        return started_s + _FIRST_BYTE_AFTER_S
    if exchange.first_byte_s >= started_s:
        return exchange.first_byte_s
    return started_s + exchange.first_byte_s


def provider_prompt(
    exchange: Exchange, prompt: Prompt, parameters: Mapping[str, object]
) -> ProviderPrompt:
    """A request as the rules of ``pricing`` take it."""
    body = exchange.seen
    options = body.get("prompt_cache_options")
    options = options if isinstance(options, dict) else {}
    positions, placed = [], 0
    for index, slot in enumerate(prompt.slots):
        stop = max(placed, prompt.tokens_at(prompt.ends[index]))
        marker = slot.marker
        positions.append(
            Position(
                stop - placed,
                prompt.chain[index],
                slot.section,
                slot.kind,
                slot.role,
                slot.ends_message,
                None if marker is None else Marker(marker.ttl, marker.path),
                slot.path,
            )
        )
        placed = stop
    named = {_NAMES[path]: dump(value) for path, value in parameters.items() if path in _NAMES}
    named["images"] = str(any(slot.kind == "image" for slot in prompt.slots))
    return ProviderPrompt(
        positions=tuple(positions),
        num_tokens=prompt.num_tokens,
        account=f"{exchange.account}\0{exchange.host}",
        model=exchange.model,
        cache_key=str(body.get("prompt_cache_key") or ""),
        parameters=named,
        explicit=options.get("mode") == "explicit",
        lifetime=str(options.get("ttl") or body.get("prompt_cache_retention") or ""),
        digest_at=_Digests(prompt) if prompt.num_tokens <= _LONGEST_CONTEXT_TOKENS else None,
    )


class _Digests:
    """Names the first so many tokens of a prompt, by the characters they are estimated to be."""

    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt
        self._index = 0

    def __call__(self, num_tokens: int) -> bytes:
        prompt = self._prompt
        weight = prompt.scale.weight(num_tokens)
        if self._index and prompt.ends[self._index - 1] > weight:
            self._index = 0
        while self._index < len(prompt.ends) - 1 and prompt.ends[self._index] < weight:
            self._index += 1
        piece = prompt.slots[self._index].piece
        inside = min(1.0, (weight - prompt.start(self._index)) / piece.weight)
        name = blake2b(prompt.chain[self._index - 1] if self._index else b"", digest_size=16)
        name.update(f"{piece.kind}\0{piece.role}\0".encode())
        name.update(piece.head(round(inside * len(piece.text))))
        return name.digest()


def rule_name(path: str) -> str:
    """What the rules call the parameter at ``path``; "" for one that they do not know."""
    return _NAMES.get(path, "")


def _find(provider: str, model: str, on: date | None, marked: bool) -> Rules:
    own = provider == "self_hosted"
    name = f"{provider}:{model}"
    try:
        found = Unknown("") if own or not model else find(_name(provider, model), on=on)
        if isinstance(found, Unknown) and on is not None and not own:
            found = find(_name(provider, model))
    except ModelError:
        found = Unknown("")
    if isinstance(found, Unknown):
        assumed = _MARKERS if marked and not own else _PREFIXES
        return Rules(f"{name} {marked}", assumed, None, known=own)
    if isinstance(found.caching, Unknown):
        assumed = _MARKERS if marked else _PREFIXES
        return Rules(f"{name} {marked}", assumed, found.prices, known=False, notes=found.notes)
    return Rules(found.name, found.caching, found.prices, known=True, notes=found.notes)


def _name(provider: str, model: str) -> str:
    """The name of a rule set. A gateway's model is its vendor's."""
    bare = model.rpartition("/")[2].lower()
    if provider in ("other", "openrouter") and "/" not in model:
        vendors = {"claude": "anthropic", "gpt": "openai", "gemini": "gemini", "grok": "xai"}
        vendor = next((one for start, one in vendors.items() if bare.startswith(start)), "")
        return f"{vendor or provider}:{model}" if vendor else f"other:{model}"
    if provider == "other":
        return f"openrouter:{model}"
    return f"{provider}:{model}"


def _day(at_s: float | None) -> date | None:
    if at_s is None or not _FIRST_DATE_S <= at_s < 1e11:
        return None
    return datetime.fromtimestamp(at_s, UTC).date()
