"""What guessing ahead gains: the same requests with and without it, the same answers.

    python benchmarks/speculation.py [SESSIONS] [--model smollm2] [--threads N] [--json]
        [--rounds 3] [--prompt-tokens 1000] [--answer-tokens 80] [--max-requests N]

SESSIONS is a folder of JSON lines with an ``input`` text, such as lmcache-agent-trace's sessions.
Of each one request is replayed: the last ``--prompt-tokens`` tokens of its longest input. Plain
chat questions stand beside them, where little repeats; their differences are small, so that they
get three times the rounds. One engine answers both ways in turns, times are from the first token to
the last, and the fastest of the rounds counts: whatever else the machine does only adds. That both
give the same tokens is checked for every answer. With 20 sessions it takes about a minute.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import geometric_mean

from kvikk import LLM

QUESTIONS = (
    "Why is the sky blue?",
    "Tell me about the history of Norway in five sentences.",
    "How do I bake bread?",
    "Write a short poem about the sea.",
    "List ten animals.",
)


@dataclass(frozen=True)
class Row:
    """One request: what its answer took with guesses and without."""

    name: str
    prompt_tokens: int
    answer_tokens: int
    steps: int  # with guesses; without, one a token
    drafted_tokens: int
    accepted_tokens: int
    tokens_per_s: float  # with guesses
    plain_tokens_per_s: float
    gain: float  # the one over the other


def session_prompts(folder: Path, model: LLM, num_tokens: int) -> dict[str, list[int]]:
    """The end of each session's longest input."""
    prompts = {}
    for path in sorted(folder.glob("*.jsonl")):
        lines = path.read_text().splitlines()
        longest = max((json.loads(line)["input"] for line in lines), key=len)
        prompts[path.stem[:16]] = model.loaded.tokenizer.encode(longest)[-num_tokens:]
    return prompts


def compare(model: LLM, name: str, prompt: Sequence[int], answer_tokens: int, rounds: int) -> Row:
    """One request with guesses and without. AssertionError if the answers differ."""
    engine, speeds = model.loaded.engine, {True: 0.0, False: 0.0}
    for _ in range(rounds):
        answers = []
        for speculates in (False, True):
            engine.speculates = speculates
            first = engine.stats()
            answer = model.generate([prompt], max_tokens=answer_tokens, ignore_eos=True)[0]
            last = engine.stats()
            answers.append(answer.token_ids)
            speeds[speculates] = max(speeds[speculates], answer.tokens_per_s or 0.0)
        assert answers[0] == answers[1], f"{name}: guesses have changed the answer"
    return Row(
        name,
        len(prompt),
        len(answers[0]),
        last.steps - first.steps,
        last.drafted_tokens - first.drafted_tokens,
        last.accepted_tokens - first.accepted_tokens,
        speeds[True],
        speeds[False],
        speeds[True] / speeds[False],
    )


def measure(
    model: str,
    sessions: Path | None,
    *,
    threads: int | None,
    rounds: int,
    prompt_tokens: int,
    answer_tokens: int,
    max_requests: int | None = None,
) -> list[Row]:
    """Sessions, then questions; at most ``max_requests`` of each."""
    llm = LLM(
        model,
        threads=threads,
        max_running=8,
        max_context_tokens=prompt_tokens + answer_tokens + 256,
        kv_memory_bytes=2**28,
    )
    prompts = {} if sessions is None else session_prompts(sessions, llm, prompt_tokens)
    requests = list(prompts.items())[:max_requests]
    for question in QUESTIONS[:max_requests]:
        messages = [{"role": "user", "content": question}]
        requests.append((question, list(llm.chat_prompt(messages))))
    rows = []
    for name, prompt in requests:
        print(name, file=sys.stderr)
        times = 3 * rounds if name in QUESTIONS else rounds
        rows.append(compare(llm, name, prompt, answer_tokens, times))
    return rows


def print_table(rows: list[Row]) -> None:
    """A Markdown table, and the geometric mean of the gains."""
    print("| request | prompt | steps for tokens | guessed, right | tokens/s, without | gain |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row.name} | {row.prompt_tokens:,} | {row.steps} for {row.answer_tokens} | "
            f"{row.drafted_tokens}, {row.accepted_tokens} | "
            f"{row.tokens_per_s:.0f}, {row.plain_tokens_per_s:.0f} | {row.gain:.2f}x |"
        )
    questions = [row.gain for row in rows if row.name in QUESTIONS]
    sessions = [row.gain for row in rows if row.name not in QUESTIONS]
    for kind, gains in (("sessions", sessions), ("questions", questions)):
        if gains:
            print(
                f"\n{kind}: {geometric_mean(gains):.2f}x (geometric mean of {len(gains)}; "
                f"{min(gains):.2f}x to {max(gains):.2f}x)"
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sessions", nargs="?", type=Path, help="a folder of *.jsonl")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=1000)
    parser.add_argument("--answer-tokens", type=int, default=80)
    parser.add_argument("--max-requests", type=int, help="of sessions, and of questions")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = measure(
        arguments.model,
        arguments.sessions,
        threads=arguments.threads,
        rounds=arguments.rounds,
        prompt_tokens=arguments.prompt_tokens,
        answer_tokens=arguments.answer_tokens,
        max_requests=arguments.max_requests,
    )
    if arguments.json:
        told = {"kvikk": version("kvikk"), "model": arguments.model, "rows": [*map(asdict, rows)]}
        print(json.dumps(told))
    else:
        print_table(rows)


if __name__ == "__main__":
    main()
