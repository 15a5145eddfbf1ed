"""What beside the text belongs to an entry's key: the same prompt again, with one thing changed.

Every change has an arm of its own: the plain request to write, the changed one to read. Where even
the same request again reads nothing, nothing can be said of the changes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvikk.errors import RequestError
from kvikk.probe.api import Prompt, Style
from kvikk.probe.money import Estimate, estimate
from kvikk.probe.run import NOT_TOLD, Ask, Run, contamination
from kvikk.text.words import text_of

WORDS = 2_400
UNCHANGED = "nothing"

_PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
_TOPIC = {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]}


@dataclass(frozen=True)
class Change:
    """Fields of the first request and of the second; ``model`` None: the same."""

    first: Mapping[str, Any]
    second: Mapping[str, Any]
    model: str | None = None


@dataclass(frozen=True)
class Effect:
    """What a change did. ``refused`` has the API's own words where it takes no such field."""

    is_hit: bool | None
    prompt_tokens: int | None
    read_tokens: int | None
    refused: str | None = None
    contaminated: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Whether reuse broke, and the counts."""
        return {
            "breaks_reuse": None if self.is_hit is None else not self.is_hit,
            "prompt_tokens": self.prompt_tokens,
            "read_tokens": self.read_tokens,
            "refused": self.refused,
            "contaminated": self.contaminated is not None,
        }


def changes(style: Style, other_model: str | None = None) -> dict[str, Change]:
    """The changes that can be tried with a style of API, by name; first the one that is none."""
    weather, news = _tools(style)
    both = {"tools": [weather, news]}
    found = {
        UNCHANGED: Change({}, {}),
        "order of tools": Change(both, {"tools": [news, weather]}),
        "a tool more": Change({"tools": [weather]}, both),
        "temperature": Change({"temperature": 0.2}, {"temperature": 0.9}),
    }
    if style == "openai":
        schema = {"name": "answer", "strict": True, "schema": _closed(_PLACE)}
        found |= {
            "response schema": Change(
                {}, {"response_format": {"type": "json_schema", "json_schema": schema}}
            ),
            "effort": Change({"reasoning_effort": "low"}, {"reasoning_effort": "high"}),
            "verbosity": Change({"verbosity": "low"}, {"verbosity": "high"}),
            "salt": Change({"cache_salt": "one"}, {"cache_salt": "two"}),
            "prompt_cache_key": Change({"prompt_cache_key": "one"}, {"prompt_cache_key": "two"}),
        }
    else:
        found["tool choice"] = Change(both, both | {"tool_choice": {"type": "any"}})
    if other_model is not None:
        found["model"] = Change({}, {}, other_model)
    return found


def keys(run: Run, other_model: str | None, words: int = WORDS) -> Iterator[tuple[str, Effect]]:
    """The effect of each change as it is known. RequestError where nothing is cached at all."""
    shared_tokens = run.shared_tokens()
    for name, change in changes(run.api.style, other_model).items():
        effect = _effect(run, name, change, shared_tokens, words)
        yield name, effect
        if not run.tells_reads:
            raise RequestError(NOT_TOLD)
        if name == UNCHANGED and not effect.is_hit:
            raise RequestError(
                f"even the same prompt of {effect.prompt_tokens:,} tokens again reads "
                f"{effect.read_tokens:,} from the cache: it is below the minimum, or nothing is "
                "cached here; see kvikk probe floor"
            )


def planned(style: Style, other_model: str | None, words: int = WORDS) -> Estimate:
    """What a run sends."""
    return estimate([text_of(words, "keys")] * (2 * len(changes(style, other_model))))


def _effect(run: Run, name: str, change: Change, shared_tokens: int, words: int) -> Effect:
    def ask_all(nonce: str, ask: Ask) -> None:
        system = (f"{nonce} {text_of(words, 'keys')}",)
        ask(Prompt(("Go on.",), system, change.first), "as it is")
        fields = dict(change.second)
        if change.model is not None:
            fields["model"] = change.model
        ask(Prompt(("Go on.",), system, fields), f"changed: {name}")

    try:
        first, second = run.arm(name, ask_all)
    except RequestError as error:
        if name == UNCHANGED:
            raise
        return Effect(None, None, None, refused=str(error))
    counts = second.counts
    return Effect(
        second.is_hit,
        counts.prompt_tokens,
        counts.read_tokens or 0,
        contaminated=contamination([first], shared_tokens),
    )


def _tools(style: Style) -> tuple[dict[str, Any], dict[str, Any]]:
    named = (("weather", "Says the weather.", _PLACE), ("news", "Says the news.", _TOPIC))
    if style == "anthropic":
        weather, news = (
            {"name": name, "description": about, "input_schema": schema}
            for name, about, schema in named
        )
    else:
        weather, news = (
            {
                "type": "function",
                "function": {"name": name, "description": about, "parameters": schema},
            }
            for name, about, schema in named
        )
    return weather, news


def _closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    return dict(schema) | {"additionalProperties": False}
