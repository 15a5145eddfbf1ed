"""What each of the six ways to get nothing from a prompt cache costs, against a server under rules.

    kvikk serve smollm2 --rules openai:gpt-5.6 &
    python benchmarks/six_ways.py [--base-url URL] [--prices openai:gpt-5.6] [--json]

Eight requests that could share a handbook, as they should be and then with one thing wrong at a
time. Counts are those of the server's usage; money is theirs by the price list. A request on
another machine is played by a salt of its own: nothing is there that it could find.
"""

import argparse
import json
from collections.abc import Callable
from decimal import Decimal
from itertools import permutations

from kvikk.probe.api import Api, Prompt
from kvikk.probe.handbook import handbook
from kvikk.probe.money import Tariff
from kvikk.probe.placement import QUESTIONS
from kvikk.probe.run import Ask, Run

HANDBOOK = handbook()
SHORT = " ".join(HANDBOOK.split()[:300])


def _tool(name: str) -> dict[str, object]:
    parameters = {"type": "object", "properties": {"what": {"type": "string"}}}
    return {
        "type": "function",
        "function": {"name": name, "description": f"Looks up {name}.", "parameters": parameters},
    }


def _tools(number: int) -> list[dict[str, object]]:
    """Always the same four, in one of their 24 orders."""
    order = list(permutations(("orders", "parts", "stock", "people")))[number]
    return [_tool(name) for name in order]


def _schema(number: int) -> dict[str, object]:
    properties = {f"answer_{number}": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


# A nonce, a question and its number to what is sent.
Make = Callable[[str, str, int], Prompt]
WAYS: dict[str, Make] = {
    "as it should be": lambda nonce, question, number: Prompt(
        user=(question,), system=(f"{nonce} {HANDBOOK}",)
    ),
    "a changing value ahead of the fixed part": lambda nonce, question, number: Prompt(
        user=(question,), system=(f"{nonce} It is 10:{number:02}:07. {HANDBOOK}",)
    ),
    "the fixed part inside a user message": lambda nonce, question, number: Prompt(
        user=(f"{nonce} {HANDBOOK}", question)
    ),
    "shorter than the minimum": lambda nonce, question, number: Prompt(
        user=(question,), system=(f"{nonce} {SHORT}",)
    ),
    "scattered over machines": lambda nonce, question, number: Prompt(
        user=(question,), system=(f"{nonce} {HANDBOOK}",), fields={"cache_salt": str(number)}
    ),
    "tools in another order": lambda nonce, question, number: Prompt(
        user=(question,),
        system=(f"{nonce} {HANDBOOK}",),
        fields={"tools": _tools(number)},
    ),
    "a response schema that changes": lambda nonce, question, number: Prompt(
        user=(question,),
        system=(f"{nonce} {HANDBOOK}",),
        fields={"response_format": _schema(number)},
    ),
}


def main() -> None:
    """Ask and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--prices", default="openai:gpt-5.6")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    arguments = parser.parse_args()
    api = Api(arguments.base_url)
    api.model = api.first_model()
    run = Run(api, Tariff(arguments.prices))
    found = {}
    for name, make in WAYS.items():

        def ask_all(nonce: str, ask: Ask, make: Make = make) -> None:
            for number, question in enumerate(QUESTIONS):
                ask(make(nonce, question, number), question)

        exchanges = run.arm(name, ask_all)
        ratio = run.tariff.ratio(exchange.counts for exchange in exchanges)
        found[name] = {
            "hits": sum(exchange.is_hit for exchange in exchanges[1:]),
            "of": len(exchanges) - 1,
            "bill_ratio": float(ratio) if isinstance(ratio, Decimal) else None,
        }
        if not arguments.json:
            bill = f"{ratio:.2f}x" if isinstance(ratio, Decimal) else "unknown"
            print(f"{name:<42} {found[name]['hits']} of 7 {bill:>8}", flush=True)
    if arguments.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
