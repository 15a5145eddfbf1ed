"""The fields that Chat Completions and Completions share: how to generate, and how to answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvikk.errors import RequestError
from kvikk.wire.choices import ChoiceFields
from kvikk.wire.grammars import GrammarSpec, read_grammar
from kvikk.wire.reading import JsonValue

MAX_STOP_STRINGS = 4
MAX_STOP_CHARACTERS = 1024

# Fields that clients know and that would change the answer if they were honoured, with the values
# that ask for nothing. Anything else is refused, never silently ignored.
_NOT_SUPPORTED: Mapping[str, tuple[object, ...]] = {
    "suffix": ("",),
    "functions": (),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
}
# Of several answers and of what is told of tokens: for the APIs that have a place for them.
_CHOICE_FIELDS: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
}
_WRITTEN_APART = {"include_usage", "include_ledger", "logit_bias", "grammar", "choices"}
MAX_PRIORITY = 2**31 - 1
_PENALTY_LIMIT = 2.0  # the API's own
_BIAS_LIMIT = 100.0
# A logit divided by less would leave float32's range.
_REPETITION_PENALTIES = (0.001, 1000)


@dataclass(frozen=True)
class GenerationFields:
    """How to generate. ``top_k`` 0: off; ``seed`` None: draw one; ``max_tokens`` None: no limit.

    ``grammar`` is what the answer must keep to. Of requests that wait those of lower ``priority``
    are served first.
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
    min_tokens: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: GrammarSpec | None = None
    choices: ChoiceFields = field(default_factory=ChoiceFields)
    priority: int = 0

    @classmethod
    def from_json(
        cls,
        body: JsonValue,
        *,
        limit_names: tuple[str, ...],
        default_limit: int | None,
        stop_name: str = "stop",
        max_stops: int = MAX_STOP_STRINGS,
        read_choices: Callable[[JsonValue], ChoiceFields] | None = None,
    ) -> "GenerationFields":
        """Read the shared fields; the first of ``limit_names`` in the body is ``max_tokens``.

        ``read_choices`` None refuses several answers, and log-probabilities.
        """
        _refuse(body, _NOT_SUPPORTED)
        if read_choices is None:
            _refuse(body, _CHOICE_FIELDS)
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
            min_tokens=_integer(body, "min_tokens", 0, 0),
            min_p=_number(body, "min_p", 0, 1, 0.0),
            presence_penalty=_penalty(body, "presence_penalty"),
            frequency_penalty=_penalty(body, "frequency_penalty"),
            repetition_penalty=_repetition_penalty(body.get("repetition_penalty")),
            logit_bias=_logit_bias(body.get("logit_bias")),
            grammar=read_grammar(body),
            choices=ChoiceFields() if read_choices is None else read_choices(body),
            priority=read_priority(body.get("priority")),
            cache_salt=_text(body, "cache_salt"),
            stream=stream,
            include_usage=not options.is_null and options.get("include_usage").boolean(False),
            include_ledger=read_include_ledger(body.get("kvikk")),
        )

    def to_json(self) -> dict[str, Any]:
        """The shared fields of a body, those at their defaults left out."""
        default = GenerationFields(self.model)
        fields: dict[str, Any] = {"model": self.model}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if value != getattr(default, name) and name not in _WRITTEN_APART:
                fields[name] = list(value) if isinstance(value, tuple) else value
        if self.grammar is not None:
            fields["structured_outputs"] = self.grammar.to_json()
        if self.logit_bias:
            fields["logit_bias"] = {str(token_id): bias for token_id, bias in self.logit_bias}
        if self.include_usage:
            fields["stream_options"] = {"include_usage": True}
        if self.include_ledger:
            fields["kvikk"] = {"ledger": True}
        return fields


def _refuse(body: JsonValue, fields: Mapping[str, tuple[object, ...]]) -> None:
    """Raise RequestError, naming the field, if ``body`` asks for what is not done here."""
    members = body.members()
    for name in fields.keys() & members.keys():
        value, neutral = members[name], fields[name]
        asks_for_nothing = value in (None, [], {}) or any(
            value == item and isinstance(value, bool) == isinstance(item, bool) for item in neutral
        )
        if not asks_for_nothing:
            advice = f"leave it out or send {neutral[0]!r}" if neutral else "leave it out"
            told = "the models here have no such mode" if name == "suffix" else "is not supported"
            raise RequestError(f"{name}: {told}; {advice}", name)


def _number(body: JsonValue, name: str, minimum: float, maximum: float, default: float) -> float:
    value = body.get(name)
    return default if value.is_null else value.number(minimum, maximum)


def _integer(body: JsonValue, name: str, minimum: int, default: int) -> int:
    value = body.get(name)
    return default if value.is_null else value.integer(minimum)


def _text(body: JsonValue, name: str) -> str:
    value = body.get(name)
    return "" if value.is_null else value.string()


def read_priority(value: JsonValue) -> int:
    """Of requests that wait those of lower priority go first."""
    return 0 if value.is_null else value.integer(-MAX_PRIORITY, MAX_PRIORITY)


def _penalty(body: JsonValue, name: str) -> float:
    return _number(body, name, -_PENALTY_LIMIT, _PENALTY_LIMIT, 0.0)


def _repetition_penalty(value: JsonValue) -> float:
    if value.is_null:
        return 1.0
    return value.number(*_REPETITION_PENALTIES)


def _logit_bias(value: JsonValue) -> tuple[tuple[int, float], ...]:
    """An object from token ids, which JSON can only have as strings, to numbers."""
    if value.is_null:
        return ()
    for name in value.members():
        if not (name.isascii() and name.isdecimal()) or len(name) > 10:
            value.fail(f"{name[:40]!r} is no token id")
    return tuple(
        (int(name), value.get(name).number(-_BIAS_LIMIT, _BIAS_LIMIT)) for name in value.members()
    )


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


def read_include_ledger(value: JsonValue) -> bool:
    """The server's own field: an object, with what is wanted beside the answer."""
    if value.is_null:
        return False
    value.refuse_others("ledger")
    return value.get("ledger").boolean(False)


def _token_ids(value: JsonValue) -> tuple[int, ...]:
    return () if value.is_null else tuple(item.integer(0, 2**31 - 1) for item in value.items())
