"""What an answer must keep to, as requests say it: OpenAI's ``response_format``, vLLM's fields."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kvikk.wire.reading import JsonValue

GrammarKind = Literal["json_schema", "regex", "choice", "grammar"]

# Of vLLM's older fields and of the newer ``structured_outputs`` the same four.
_KINDS: Mapping[str, GrammarKind] = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
}
# What ``structured_outputs`` may say besides, and what is done anyway.
_DONE_ANYWAY = ("disable_fallback", "disable_any_whitespace")


@dataclass(frozen=True)
class GrammarSpec:
    """What is asked for, and the field it came in.

    ``text`` is a JSON schema, a regular expression, a JSON list of strings to choose from, or a
    grammar in Lark's notation or llama.cpp's GBNF.
    """

    kind: GrammarKind
    text: str
    parameter: str

    def to_json(self) -> dict[str, Any]:
        """The same as ``structured_outputs``."""
        name = next(name for name, kind in _KINDS.items() if kind == self.kind)
        is_json = self.kind in ("json_schema", "choice")
        return {name: json.loads(self.text) if is_json else self.text}


def json_schema(schema: Mapping[str, Any], parameter: str) -> GrammarSpec:
    """A grammar of the JSON values that keep to ``schema``."""
    return GrammarSpec("json_schema", json.dumps(schema), parameter)


def read_grammar(body: JsonValue) -> GrammarSpec | None:
    """The one grammar that a body asks for; None if it asks for none.

    Raises RequestError, naming the place, for what cannot be understood, and for two of them.
    """
    found = list(_grammars(body))
    if len(found) > 1:
        body.get(found[1].parameter.partition(".")[0]).fail(
            f"an answer keeps to one grammar, and {found[0].parameter} is one already"
        )
    return found[0] if found else None


def read_format(value: JsonValue) -> GrammarSpec | None:
    """``{"type": "text"}``, ``json_object``, or ``json_schema``, the schema beside or below it."""
    match value.get("type").string():
        case "text":
            return None
        case "json_object":
            return json_schema({"type": "object"}, value.path)
        case "json_schema":
            inner = value.get("json_schema")
            schema = (value if inner.is_null else inner).get("schema")
            return json_schema(schema.members(), schema.path)
        case _:
            return value.get("type").fail("expected text, json_object or json_schema")


def _grammars(body: JsonValue) -> Iterator[GrammarSpec]:
    given = body.get("response_format")
    if not given.is_null:
        spec = read_format(given)
        if spec is not None:
            yield spec
    several = body.get("structured_outputs")
    if not several.is_null:
        several.refuse_others(*_KINDS, "json_object", *_DONE_ANYWAY)
    for name, kind in _KINDS.items():
        places = [body.get(f"guided_{name}")]
        if not several.is_null:
            places.append(several.get(name))
        yield from (_read(kind, place) for place in places if not place.is_null)
    if not several.is_null and several.get("json_object").boolean(False):
        yield json_schema({"type": "object"}, "structured_outputs.json_object")


def _read(kind: GrammarKind, place: JsonValue) -> GrammarSpec:
    if kind == "choice":
        choices = [item.string() for item in place.items()]
        if not all(choices) or not choices:
            place.fail("expected strings to choose from, none of them empty")
        return GrammarSpec(kind, json.dumps(choices), place.path)
    if kind == "json_schema" and not isinstance(place.value, str):
        return json_schema(place.members(), place.path)
    return GrammarSpec(kind, place.string(), place.path)
