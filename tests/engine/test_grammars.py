"""Answers that must keep to a grammar do, whatever a model would rather say."""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kvikk.backends.base import SamplingParameters
from kvikk.engine.loading import LoadedEngine, load_engine
from kvikk.engine.lookup import Guess
from kvikk.engine.options import EngineOptions
from kvikk.engine.requests import Generation, Output, Request
from kvikk.engine.speculation import Speculation
from kvikk.errors import RequestError
from kvikk.text.grammars import GrammarCompiler
from kvikk.wire.grammars import GrammarSpec, json_schema
from tests.engine.driver import Answer, answer_name

DRAWN = SamplingParameters(1.0)


@pytest.fixture(scope="module")
def loaded(tiny_model: Path) -> LoadedEngine:
    """Random weights: nothing it says by itself is JSON."""
    options = EngineOptions(
        str(tiny_model), backend="reference", threads=1, kv_memory_bytes=64 << 20, max_queue=1000
    )
    return load_engine(options)


@pytest.fixture(scope="module")
def compiler(loaded: LoadedEngine) -> GrammarCompiler:
    return GrammarCompiler(loaded.tokenizer)


def run(loaded: LoadedEngine, requests: list[Request]) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    for request in requests:
        loaded.engine.add(request)
    while loaded.engine.has_work:
        for output in loaded.engine.step():
            name = answer_name(output.request_id, output.choice)
            answers.setdefault(name, Answer()).take(output)
    return answers


def random_schema(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    """A schema whose values are short, so that answers end."""
    kinds = ["string", "integer", "boolean", "enum", "pattern", "date", "const", "null"]
    if depth < 3:
        kinds += ["object", "object", "array", "any"]
    match chance.choice(kinds) if depth else "object":
        case "string":
            return {"type": "string", "maxLength": chance.randint(0, 5)}
        case "integer":
            low = chance.randint(-50, 50)
            return {"type": "integer", "minimum": low, "maximum": low + chance.randint(0, 500)}
        case "enum":
            return {"enum": chance.sample(["a", "b c", 1, 2.5, None, True, "ø"], 3)}
        case "pattern":
            return {"type": "string", "pattern": f"^[a-f]{{1,{chance.randint(1, 4)}}}$"}
        case "date":
            return {"type": "string", "format": "date"}
        case "const":
            return {"const": chance.choice([[1, 2], {"x": "y"}, "z"])}
        case "any":
            return {"anyOf": [random_schema(chance, depth + 1) for _ in range(2)]}
        case "array":
            low = chance.randint(0, 2)
            items = random_schema(chance, depth + 1)
            most = low + chance.randint(0, 1)
            return {"type": "array", "items": items, "minItems": low, "maxItems": most}
        case "object":
            names = chance.sample(["id", "name", "two words", "größe", "x", "tags"], 3)
            return {
                "type": "object",
                "properties": {name: random_schema(chance, depth + 1) for name in names},
                "required": names[: chance.randint(0, 3)],
                "additionalProperties": False,
            }
        case kind:
            return {"type": kind}


def test_every_answer_to_200_random_schemas_is_valid(
    loaded: LoadedEngine, compiler: GrammarCompiler
) -> None:
    schemas = [random_schema(random.Random(seed)) for seed in range(200)]
    requests = [
        Request(
            str(number),
            (1, number),
            Generation(
                1000, DRAWN, seed=number, grammar=compiler.compile(json_schema(schema, "schema"))
            ),
        )
        for number, schema in enumerate(schemas)
    ]
    answers = run(loaded, requests)
    for number, schema in enumerate(schemas):
        answer = answers[str(number)]
        assert answer.finish_reason == "stop"
        jsonschema.validate(json.loads(answer.text), schema)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("regex", r"[A-Z][a-z]{2,4} \d{3}", r"[A-Z][a-z]{2,4} \d{3}"),
        ("choice", '["yes", "no, never", "\\"quoted\\""]', r'yes|no, never|"quoted"'),
        ("grammar", 'start: "a" ("b" | "c")~2', "a[bc]{2}"),
        ("grammar", 'root ::= "x" ("1" | "2")', "x[12]"),
    ],
)
def test_answers_keep_to_a_regex_a_choice_and_a_grammar(
    loaded: LoadedEngine, compiler: GrammarCompiler, kind: Any, text: str, expected: str
) -> None:
    grammar = compiler.compile(GrammarSpec(kind, text, "x"))
    # ignore_eos is for texts that have no end of their own.
    generation = Generation(40, DRAWN, seed=1, grammar=grammar, choices=4, ignore_eos=True)
    answers = run(loaded, [Request("a", (1, 2, 3), generation)])
    for answer in answers.values():
        assert re.fullmatch(expected, answer.text)
        assert answer.finish_reason == "stop"
    assert len({answer.text for answer in answers.values()}) > 1


def test_choices_may_be_many_and_hold_any_character(
    loaded: LoadedEngine, compiler: GrammarCompiler
) -> None:
    choices = [
        f"a{number}{end}" for number in range(1000) for end in ("", "/.*", "\n|", ' "\\a', "é")
    ]
    grammar = compiler.compile(GrammarSpec("choice", json.dumps(choices), "x"))
    generation = Generation(40, DRAWN, seed=1, grammar=grammar, choices=8)
    answers = run(loaded, [Request("a", (1, 2, 3), generation)])
    texts = {answer.text for answer in answers.values()}
    assert texts <= set(choices)
    assert len(texts) > 4


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_guessing_ahead_changes_no_answer_that_keeps_to_a_grammar(
    loaded: LoadedEngine,
    compiler: GrammarCompiler,
    temperature: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grammar = compiler.compile(GrammarSpec("regex", r"(ab|ac|the end, ){30,60}", "x"))
    generation = Generation(
        40, SamplingParameters(temperature, top_k=5), seed=2, grammar=grammar,
        repetition_penalty=1.05,
    )  # fmt: skip
    requests = [Request(str(number), (1, 2, number), generation) for number in range(3)]
    plain = run(loaded, requests)

    def drafter(self: Speculation, request: Request, max_tokens: int) -> MostlyRight:
        return MostlyRight([*request.prompt_token_ids, *plain[request.id].token_ids])

    monkeypatch.setattr(Speculation, "drafter", drafter)
    monkeypatch.setattr(Speculation, "num_worthwhile", lambda self, answers, guesses: len(guesses))
    # The reference backend gains nothing by guesses, and so is loaded without.
    monkeypatch.setattr(loaded.engine, "_speculation", Speculation())
    loaded.engine.speculates = True
    before = loaded.engine.stats()
    guessed = run(loaded, requests)
    after = loaded.engine.stats()
    loaded.engine.speculates = False
    for name, answer in plain.items():
        assert guessed[name].token_ids == answer.token_ids
    accepted = after.accepted_tokens - before.accepted_tokens
    assert 0 < accepted < after.drafted_tokens - before.drafted_tokens


class MostlyRight:
    """Guesses an answer that is known, every fifth token of it wrong and against the grammar."""

    def __init__(self, truth: list[int]) -> None:
        self._truth = truth

    def draft(self, tokens: Sequence[int], least_chance: float, max_tokens: int) -> list[Guess]:
        start = len(tokens)
        ahead = enumerate(self._truth[start : start + max_tokens], start)
        return [Guess(5 if place % 5 == 0 else token_id, 0.9) for place, token_id in ahead]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (json_schema({"type": "nothing"}, "place"), "Invalid type"),
        (json_schema({"$ref": "http://127.0.0.1:9/x"}, "place"), "not fetch"),
        (GrammarSpec("json_schema", "{", "place"), "cannot be used"),
        (GrammarSpec("regex", "(", "place"), "regex"),
        (GrammarSpec("grammar", "start: there", "place"), "unknown name"),
        (GrammarSpec("regex", r"[^\s\S]", "place"), "no answer"),
        (json_schema({"$ref": "#"}, "place"), "no answer"),
        (GrammarSpec("regex", "(a{1000}){1000}", "place"), "too large to follow"),
    ],
)
def test_what_is_no_grammar_is_refused_in_one_line(
    compiler: GrammarCompiler, spec: GrammarSpec, reason: str
) -> None:
    with pytest.raises(RequestError, match=reason) as refusal:
        compiler.compile(spec)
    assert refusal.value.parameter == "place"
    assert "\n" not in str(refusal.value)


def test_a_grammar_says_itself_when_an_answer_ends(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(GrammarSpec("choice", '["a"]', "x"))
    with pytest.raises(RequestError, match="leave min_tokens out"):
        replace(Generation(5, grammar=grammar), min_tokens=2)


def test_a_grammar_that_grows_too_large_ends_its_own_answer_and_no_other(
    loaded: LoadedEngine, compiler: GrammarCompiler
) -> None:
    # Which of the characters so far count is open for a long time, and all that may be is followed.
    spec = GrammarSpec("regex", "(?:[a-z]+ )*[aeiou](?:[a-z ]{1,20}[mnop]){8}Z", "guided_regex")
    grammar = compiler.compile(spec)
    generation = Generation(400, DRAWN, seed=1, grammar=grammar)
    answers: dict[str, Output] = {}
    for request in (
        Request("large", (1, 2, 3), generation),
        Request("plain", (1, 2, 4), Generation(20, ignore_eos=True)),
    ):
        loaded.engine.add(request)
    while loaded.engine.has_work:
        for output in loaded.engine.step():
            answers[output.request_id] = output
    refusal = answers["large"].refusal
    assert refusal is not None
    assert refusal.parameter == "guided_regex"
    assert "too large" in str(refusal)
    assert "backend" not in str(answers["large"].error)
    assert answers["plain"].finish_reason == "length"
    # What others built of it is not held against the next one.
    assert compiler.compile(spec) is not grammar
    assert compiler.compile(spec).start().allowed().any()
