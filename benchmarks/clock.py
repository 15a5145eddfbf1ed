"""One handbook, eight questions: with a clock in front of it, without one, with one at the end.

    python benchmarks/clock.py [--base-url http://127.0.0.1:8000/v1]

The server's own ledger says where the prompts' tokens went.
"""

import argparse
from collections import Counter
from collections.abc import Callable

import httpx

from kvikk.probe.handbook import handbook
from kvikk.probe.placement import QUESTIONS

# So that it is read in seconds on a small machine.
HANDBOOK = " ".join(handbook().split()[:1200])
# A clock and a question to the system text and the user's.
WAYS: dict[str, Callable[[str, str], tuple[str, str]]] = {
    "no clock": lambda clock, question: (HANDBOOK, question),
    "at the end": lambda clock, question: (HANDBOOK, f"{question} (It is {clock}.)"),
    "in front": lambda clock, question: (f"It is {clock}. {HANDBOOK}", question),
}


def main() -> None:
    """Ask and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    arguments = parser.parse_args()
    with httpx.Client(base_url=arguments.base_url, timeout=600) as http:
        model = http.get("/models").raise_for_status().json()["data"][0]["id"]
        print(f"{'the clock':<12}{'reused':>8}  by cause, of eight requests")
        for name, way in WAYS.items():
            causes: Counter[str] = Counter()
            for number, question in enumerate(QUESTIONS):
                # The first text of a way shall not find the one before it.
                clock = f"{9 + number // 4}:{15 * (number % 4) + 7:02}:07"
                system, user = way(clock, question)
                messages = [
                    {"role": "system", "content": f"{name}. {system}"},
                    {"role": "user", "content": user},
                ]
                body = {"model": model, "messages": messages, "max_tokens": 1}
                answer = http.post("/chat/completions", json=body).raise_for_status()
                for part in answer.headers["x-kvikk-ledger"].split("; "):
                    cause, _, tokens = part.partition("=")
                    causes[cause] += int(tokens)
            reused = sum(tokens for cause, tokens in causes.items() if cause.startswith("hit"))
            told = ", ".join(f"{cause} {tokens:,}" for cause, tokens in causes.most_common(4))
            print(f"{name:<12}{reused / causes.total():>7.0%}   {told}", flush=True)


if __name__ == "__main__":
    main()
