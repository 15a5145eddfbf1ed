"""Ten-turn conversations before a fleet of real engines: what each routing policy reuses.

    python benchmarks/fleet.py [--replicas 8] [--policies round_robin,least_requests,weighted]
    python benchmarks/fleet.py --routers 2 [--deaf] --policies round_robin,weighted,consistent_hash

Every engine is a process of its own with a small cache that tells the router what it holds. The
conversations take turns in a shuffled order, several at a time; each turn sends the whole
conversation again. First every conversation has a system prompt of its own, then all share one.
Between two runs the caches are emptied. *Found* is the share of later turns that reuse all full
blocks of their previous turn's prompt; *reused* is of prompt tokens; the oracles are the router's.

With several routers each turn of a conversation goes to the next one; the oracles, of which each
would know a part, are left out. Routers that are not ``--deaf`` hear between two rounds what was
published, as they would while people read and type.
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
    routers: int
    turns: int
    found_share: float
    reused_share: float
    perfect_placement: float | None
    one_cache: float | None
    infinite: float | None
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


def router_arguments(
    model: str, policy: str, fleet: Sequence[Process], is_deaf: bool = False
) -> list[str]:
    """A router before the fleet that hears its events, unless it is deaf."""
    arguments = ["route", "--port", "0", "--policy", policy, "--tokenizer", model]
    for one in fleet:
        arguments += ["--replica", one.url]
        if not is_deaf:
            arguments += ["--kv-events", f"{one.url}={one.events}"]
    return arguments


def hear(routers: Sequence[httpx.Client], fleet: Sequence[Process]) -> None:
    """Wait until all routers know of every replica what it holds."""
    while True:
        caches = [
            httpx.get(f"{one.url}/v1/kvikk/cache", trust_env=False, timeout=60).json()
            for one in fleet
        ]
        holds = [one["live_blocks"] + one["cached_blocks"] for one in caches]
        books = [http.get("/v1/kvikk/fleet").json()["replicas"] for http in routers]
        if all([one["held_blocks"] for one in replicas] == holds for replicas in books):
            return
        time.sleep(0.02)


def run(
    options: argparse.Namespace, fleet: Sequence[Process], policy: str, shares_system: bool
) -> Row:
    """All turns of all conversations through a router with this policy."""
    chance = random.Random(f"{options.seed} {policy} {shares_system}")
    for one in fleet:
        assert httpx.post(f"{one.url}/v1/kvikk/cache/reset", trust_env=False, timeout=60).json()[
            "complete"
        ]
    conversations = []
    for number in range(options.conversations):
        name = "all" if shares_system else number
        system = text_of(options.system_words, options.seed, policy, shares_system, name)
        conversations.append(Conversation([{"role": "system", "content": system}]))
    counts = Counts()
    with ExitStack() as stack, ThreadPoolExecutor(options.concurrency) as pool:
        routers = []
        for _ in range(options.routers):
            arguments = router_arguments(options.model, policy, fleet, options.deaf)
            url = stack.enter_context(started(arguments)).url
            http = httpx.Client(base_url=url, timeout=300, trust_env=False)
            routers.append(stack.enter_context(http))
            while http.get("/healthz").json()["usable"] < len(fleet):
                time.sleep(0.05)
        model = routers[0].get("/v1/models").json()["data"][0]["id"]
        begun_s = time.monotonic()
        for turn in range(options.turns):
            asking = []
            for number, talk in enumerate(conversations):
                said = text_of(20, options.seed, policy, shares_system, number, turn)
                talk.messages.append({"role": "user", "content": said})
                asking.append((routers[(number + turn) % len(routers)], talk))
            for done in [
                pool.submit(take_turn, http, model, options.answer_tokens, talk, counts)
                for http, talk in chance.sample(asking, len(asking))
            ]:
                done.result()
            if not options.deaf:
                hear(routers, fleet)
        seconds = time.monotonic() - begun_s
        books = [http.get("/v1/kvikk/fleet").json() for http in routers]
    replicas = [one for book in books for one in book["replicas"]]
    predicted = sum(one["agreement"] * tokens_of(one) for one in replicas)
    rates: dict[str, float] = books[0]["rates"] if len(books) == 1 else {}
    return Row(
        "one for all" if shares_system else "each its own",
        policy,
        len(fleet),
        len(routers),
        options.turns * options.conversations,
        counts.found / max(1, counts.later_turns),
        counts.cached_tokens / counts.prompt_tokens,
        rates.get("perfect_placement"),
        rates.get("one_cache"),
        rates.get("infinite"),
        predicted / max(1, sum(map(tokens_of, replicas))),
        seconds,
    )


def take_turn(
    http: httpx.Client, model: str, answer_tokens: int, conversation: Conversation, counts: Counts
) -> None:
    """One turn: ask, remember the answer, count what was reused."""
    reply = http.post(
        "/v1/chat/completions",
        json={
            "model": model,
            "messages": conversation.messages,
            "max_tokens": answer_tokens,
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
                "" if share is None else f"{100 * share:.1f} %"
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
    parser.add_argument("--routers", type=int, default=1)
    parser.add_argument("--deaf", action="store_true", help="routers hear no KV events")
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
