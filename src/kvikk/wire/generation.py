"""The fields that Chat Completions and Completions share: how to generate, and how to answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvikk.errors import RequestError
from kvikk.wire.reading import JsonValue

MAX_STOP_STRINGS = 4
MAX_STOP_CHARACTERS = 1024

# Fields that clients know and that would change the answer if they were honoured, with the values
# that ask for nothing. Anything else is refused, never silently ignored.
_NOT_SUPPORTED: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "logit_bias": (),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "functions": (),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
}


@dataclass(frozen=True)
class GenerationFields:
    """How to generate. ``top_k`` 0: off; ``seed`` None: draw one; ``max_tokens`` None: no limit.

    ``include_usage`` asks for a last event with the usage in a stream. ``cache_salt`` parts this
    request's cache from all with another salt. ``include_ledger`` asks for the prompt's ledger in
    the body, or in a stream's last event.
    """

    model: str
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    cache_salt: str = ""
    stream: bool = False
    include_usage: bool = False
    include_ledger: bool = False

    @classmethod
    def from_json(
        cls,
        body: JsonValue,
        *,
        limit_names: tuple[str, ...],
        default_limit: int | None,
        stop_name: str = "stop",
        max_stops: int = MAX_STOP_STRINGS,
    ) -> "GenerationFields":
        """Read the shared fields; the first of ``limit_names`` in the body is ``max_tokens``."""
        refuse_what_is_not_supported(body)
        stream = body.get("stream").boolean(False)
        options = body.get("stream_options")
        if not options.is_null and not stream:
            options.fail("is only for streams; set stream to true or leave it out")
        limits = [limit for name in limit_names if not (limit := body.get(name)).is_null]
        return cls(
            model=body.get("model").string(),
            max_tokens=limits[0].integer(1) if limits else default_limit,
            temperature=_number(body, "temperature", 0, 2, 1.0),
            top_p=_top_p(body.get("top_p")),
            top_k=max(0, _integer(body, "top_k", -1, 0)),
            seed=None if body.get("seed").is_null else body.get("seed").integer(-(2**63)),
            stop=_stop(body.get(stop_name), max_stops),
            stop_token_ids=_token_ids(body.get("stop_token_ids")),
            ignore_eos=body.get("ignore_eos").boolean(False),
            cache_salt=_text(body, "cache_salt"),
            stream=stream,
            include_usage=not options.is_null and options.get("include_usage").boolean(False),
            include_ledger=_include_ledger(body.get("kvikk")),
        )

    def to_json(self) -> dict[str, Any]:
        """The shared fields of a body, those at their defaults left out."""
        default = GenerationFields(self.model)
        fields: dict[str, Any] = {"model": self.model}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if value != getattr(default, name) and not name.startswith("include_"):
                fields[name] = list(value) if isinstance(value, tuple) else value
        if self.include_usage:
            fields["stream_options"] = {"include_usage": True}
        if self.include_ledger:
            fields["kvikk"] = {"ledger": True}
        return fields


def refuse_what_is_not_supported(body: JsonValue) -> None:
    """Raise RequestError, naming the field, if ``body`` asks for what is not done here."""
    members = body.members()
    for name in _NOT_SUPPORTED.keys() & members.keys():
        value, neutral = members[name], _NOT_SUPPORTED[name]
        asks_for_nothing = value in (None, [], {}) or any(
            value == item and isinstance(value, bool) == isinstance(item, bool) for item in neutral
        )
        if not asks_for_nothing:
            advice = f"leave it out or send {neutral[0]!r}" if neutral else "leave it out"
            raise RequestError(f"{name}: is not supported; {advice}", name)


def _number(body: JsonValue, name: str, minimum: float, maximum: float, default: float) -> float:
    value = body.get(name)
    return default if value.is_null else value.number(minimum, maximum)


def _integer(body: JsonValue, name: str, minimum: int, default: int) -> int:
    value = body.get(name)
    return default if value.is_null else value.integer(minimum)


def _text(body: JsonValue, name: str) -> str:
    value = body.get(name)
    return "" if value.is_null else value.string()


def _top_p(value: JsonValue) -> float:
    if value.is_null:
        return 1.0
    top_p = value.number(0, 1)
    if top_p == 0:
        value.fail("must be above 0; for the likeliest token alone set temperature to 0")
    return top_p


def _stop(value: JsonValue, max_stops: int) -> tuple[str, ...]:
    if value.is_null:
        return ()
    items = [value] if isinstance(value.value, str) else list(value.items())
    if len(items) > max_stops:
        value.fail(f"at most {max_stops} stop strings, not {len(items)}")
    for item in items:
        if not 1 <= len(item.string()) <= MAX_STOP_CHARACTERS:
            item.fail(f"a stop string has 1 to {MAX_STOP_CHARACTERS} characters")
    return tuple(item.string() for item in items)


def _include_ledger(value: JsonValue) -> bool:
    """The server's own field: an object, with what is wanted beside the answer."""
    return not value.is_null and value.get("ledger").boolean(False)


def _token_ids(value: JsonValue) -> tuple[int, ...]:
    return () if value.is_null else tuple(item.integer(0, 2**31 - 1) for item in value.items())
