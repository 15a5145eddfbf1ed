"""Ten-turn conversations before a fleet of real engines: what each routing policy reuses.

    python benchmarks/fleet.py [--replicas 8] [--policies round_robin,least_requests,weighted]

Every engine is a process of its own with a small cache that tells the router what it holds. The
conversations take turns in a shuffled order, several at a time; each turn sends the whole
conversation again. First every conversation has a system prompt of its own, then all share one.
Between two runs the caches are emptied. *Found* is the share of later turns that reuse all full
blocks of their previous turn's prompt; *reused* is of prompt tokens; the oracles are the router's.
"""

import argparse
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from kvikk.cli.columns import columns
from kvikk.text.words import text_of

BLOCK_TOKENS = 32
_START_S = 300.0


@dataclass(frozen=True)
class Process:
    """One that listens at ``url``; ``events`` are its KV events' addresses, if it has any."""

    url: str
    events: str = ""


@dataclass
class Conversation:
    """What has been said, and how long its last prompt was."""

    messages: list[dict[str, str]]
    last_prompt_tokens: int = 0


@dataclass
class Counts:
    """What turns found. Guarded by its lock."""

    later_turns: int = 0
    found: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class Row:
    """One run."""

    system: str
    policy: str
    replicas: int
    turns: int
    found_share: float
    reused_share: float
    perfect_placement: float
    one_cache: float
    infinite: float
    agreement: float
    seconds: float


@contextmanager
def started(arguments: Sequence[str], events: str = "") -> Iterator[Process]:
    """``kvikk`` with these arguments, once it listens. Ends with its log if it does not."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([sys.executable, "-m", "kvikk", *arguments], stderr=log)
        try:
            deadline_s = time.monotonic() + _START_S
            while True:
                log.seek(0)
                text = log.read()
                if found := re.search(r"listening on (http://\S+)", text):
                    break
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise SystemExit(f"kvikk {arguments[0]} did not start:\n{text}")
                time.sleep(0.1)
            yield Process(found[1], events)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def engines(options: argparse.Namespace, folder: Path) -> Iterator[list[Process]]:
    """So many servers, started together."""
    with ExitStack() as stack, ThreadPoolExecutor(options.replicas) as pool:

        def start(number: int) -> Any:
            address = f"ipc://{folder}/events-{number},ipc://{folder}/replay-{number}"
            publish, replay = address.split(",")
            memory = f"{options.kv_memory_mib}MiB"
            context = started(
                [
                    *("serve", options.model, "--port", "0", "--threads", "1"),
                    *("--kv-memory", memory, "--max-context", "1024"),
                    *("--kv-events", publish, "--kv-events-replay", replay),
                ],
                address,
            )
            return context, context.__enter__()

        # The first one compiles what the others then find compiled.
        entered = [start(0), *pool.map(start, range(1, options.replicas))]
        for context, _ in entered:
            stack.push(context.__exit__)
        yield [process for _, process in entered]


def router_arguments(model: str, policy: str, fleet: Sequence[Process]) -> list[str]:
    """A router before the fleet that hears its events."""
    arguments = ["route", "--port", "0", "--policy", policy, "--tokenizer", model]
    for one in fleet:
        arguments += ["--replica", one.url, "--kv-events", f"{one.url}={one.events}"]
    return arguments


def run(
    options: argparse.Namespace, fleet: Sequence[Process], policy: str, shares_system: bool
) -> Row:
    """All turns of all conversations through a router with this policy."""
    chance = random.Random(f"{options.seed} {policy} {shares_system}")
    for one in fleet:
        assert httpx.post(f"{one.url}/v1/kvikk/cache/reset", trust_env=False).json()["complete"]
    conversations = []
    for number in range(options.conversations):
        name = "all" if shares_system else number
        system = text_of(options.system_words, options.seed, policy, shares_system, name)
        conversations.append(Conversation([{"role": "system", "content": system}]))
    counts = Counts()
    with (
        started(router_arguments(options.model, policy, fleet)) as router,
        httpx.Client(base_url=router.url, timeout=300, trust_env=False) as http,
        ThreadPoolExecutor(options.concurrency) as pool,
    ):
        while http.get("/healthz").json()["usable"] < len(fleet):
            time.sleep(0.05)
        begun_s = time.monotonic()
        for turn in range(options.turns):
            order = chance.sample(conversations, len(conversations))
            for number, one in enumerate(conversations):
                said = text_of(20, options.seed, policy, shares_system, number, turn)
                one.messages.append({"role": "user", "content": said})
            list(pool.map(lambda one: take_turn(http, options, one, counts), order))
        seconds = time.monotonic() - begun_s
        books = http.get("/v1/kvikk/fleet").json()
    predicted = sum(one["agreement"] * tokens_of(one) for one in books["replicas"])
    return Row(
        "one for all" if shares_system else "each its own",
        policy,
        len(fleet),
        options.turns * options.conversations,
        counts.found / max(1, counts.later_turns),
        counts.cached_tokens / counts.prompt_tokens,
        books["rates"]["perfect_placement"],
        books["rates"]["one_cache"],
        books["rates"]["infinite"],
        predicted / max(1, sum(map(tokens_of, books["replicas"]))),
        seconds,
    )


def take_turn(
    http: httpx.Client, options: argparse.Namespace, conversation: Conversation, counts: Counts
) -> None:
    """One turn: ask, remember the answer, count what was reused."""
    reply = http.post(
        "/v1/chat/completions",
        json={
            "model": options.model,
            "messages": conversation.messages,
            "max_tokens": options.answer_tokens,
            "ignore_eos": True,
        },
    )
    reply.raise_for_status()
    value = reply.json()
    usage = value["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    before = conversation.last_prompt_tokens
    conversation.messages.append(
        {"role": "assistant", "content": value["choices"][0]["message"]["content"]}
    )
    conversation.last_prompt_tokens = usage["prompt_tokens"]
    with counts.lock:
        counts.prompt_tokens += usage["prompt_tokens"]
        counts.cached_tokens += cached
        if before:
            counts.later_turns += 1
            counts.found += cached >= before // BLOCK_TOKENS * BLOCK_TOKENS


def tokens_of(replica: dict[str, Any]) -> int:
    """Prompt tokens that a replica answered."""
    return sum(replica["by_cause"].values())


def table(rows: Sequence[Row]) -> str:
    """The rows for a terminal."""
    heads = (
        *("system prompt", "policy", "found", "reused", "perfect placement", "one cache"),
        *("infinite", "agreement", "s"),
    )
    cells = [
        (
            row.system,
            row.policy,
            *(
                f"{100 * share:.1f} %"
                for share in (
                    *(row.found_share, row.reused_share, row.perfect_placement, row.one_cache),
                    *(row.infinite, row.agreement),
                )
            ),
            f"{row.seconds:.0f}",
        )
        for row in rows
    ]
    return columns([heads, *cells], right=range(2, 9))


def main() -> None:
    """Run all policies, with system prompts of both kinds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--policies", default="round_robin,least_requests,weighted")
    parser.add_argument("--conversations", type=int, default=16)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--system-words", type=int, default=100)
    parser.add_argument("--answer-tokens", type=int, default=8)
    parser.add_argument("--kv-memory-mib", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder, engines(options, Path(folder)) as fleet:
        for shares_system in (False, True):
            for policy in options.policies.split(","):
                rows.append(run(options, fleet, policy, shares_system))
                print(table(rows[-1:]), file=sys.stderr)
    print(json.dumps({"rows": [asdict(row) for row in rows]}) if options.json else table(rows))


if __name__ == "__main__":
    main()
