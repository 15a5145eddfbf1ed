"""Ten-turn conversations over HTTP, on our server and on the peers'.

    python benchmarks/conversations.py [--servers kvikk llama-server …] [--model smollm2] [--keep]

Sixteen sessions at once share a system prompt; every turn sends the whole conversation again, so
that what a server does not reuse it computes. Then, on the idle server, one conversation behind a
long prompt: its first turn is cold, the later ones are warm. Requests are those of
``kvikk bench serve``. Each server is started for itself, with its own best documented settings
(``servers.py``).
"""

import argparse
import json
import os
import sys
from dataclasses import replace
from statistics import median
from typing import Any

import results
from kvikk.bench.serve import ServeOptions, ServeReport, measure
from kvikk.bench.workloads import Chat, Workload
from models import MODELS_OF_THE_COMPARISON
from servers import KINDS, RunningServer, ServerKind, running
from tables import conversation_table

SESSIONS = 16
CONVERSATIONS = Chat(SESSIONS, 10, 1000, 39, 48)
ONE_LONG = Chat(1, 5, 4000, 39, 8)
# Slots of llama.cpp divide its context; the longest conversation must fit into each.
CONTEXT_TOKENS = 98_304


# One that computes most of every prompt again gets fewer turns.
SHORTER = {"transformers serve, bf16": 2}


def converse(kind: ServerKind, model: str, threads: int) -> dict[str, Any]:
    """The figures of one server. Exits with its log if it does not come up."""
    workload = replace(CONVERSATIONS, num_turns=SHORTER.get(kind.name, CONVERSATIONS.num_turns))
    with running(kind, model, threads=threads, slots=SESSIONS, context=CONTEXT_TOKENS) as server:
        _tell(f"{kind.name}: up after {server.start_s:.1f} s")
        many = _measure(server, workload, f"{kind.name}: conversations")
        one = _measure(server, ONE_LONG, f"{kind.name}: one long conversation")
        start_s = server.start_s
    done = many.summary
    first_s = [result.ttft_s for result in one.run.results if result.ttft_s is not None]
    return {
        "software": kind.version(),
        "start_s": start_s,
        "turns": workload.num_turns,
        "sessions": workload.num_sessions,
        "errors": {**done.errors, **one.summary.errors},
        "total_s": done.duration_s,
        "output_tokens_per_s": done.output_tokens_per_s,
        "ttft_by_turn_s": [turn.ttft_s and turn.ttft_s.mean for turn in done.turns],
        "first_turn_ttft_s": _mean_and_p95(done.first_turn_ttft_s),
        "later_turns_ttft_s": _mean_and_p95(done.later_turns_ttft_s),
        "prompt_tokens": done.prompt_tokens,
        "cached_tokens": done.cached_tokens,
        "long_prompt_tokens": one.run.results[0].counts and one.run.results[0].counts.prompt_tokens,
        "cold_ttft_s": first_s[0],
        "warm_ttft_s": median(first_s[1:]),
    }


def _measure(server: RunningServer, workload: Workload, title: str) -> ServeReport:
    count = 0

    def progress(_: object) -> None:
        nonlocal count
        count += 1
        if count % SESSIONS == 0:
            _tell(f"{title}: {count} of {workload.num_requests} turns")

    options = ServeOptions(server.base_url, "chat", concurrency=SESSIONS)
    return measure(options, workload, on_result=progress)


def _mean_and_p95(spread: Any) -> list[float] | None:
    return None if spread is None else [spread.mean, spread.p95]


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Measure the servers one after the other, print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    installed = [name for name, kind in KINDS.items() if kind.is_installed]
    parser.add_argument("--servers", nargs="+", default=installed, choices=list(KINDS))
    parser.add_argument("--model", default="smollm2", choices=list(MODELS_OF_THE_COMPARISON))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", action="store_true", help="entries instead of a table")
    parser.add_argument("--keep", action="store_true", help="put them among the results")
    arguments = parser.parse_args()
    entries: results.Entries = {}
    for name in arguments.servers:
        if not KINDS[name].is_installed:
            parser.error(f"{name} is not installed; run benchmarks/peers/install.sh")
        measured = converse(KINDS[name], arguments.model, arguments.threads)
        entries[name] = {**results.conditions(arguments.threads), **measured}
        if arguments.keep:
            results.add("conversations", {name: entries[name]})
    print(json.dumps(entries, indent=1) if arguments.json else conversation_table(entries))


if __name__ == "__main__":
    main()
