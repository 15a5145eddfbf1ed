"""Time to the first token of one prompt: computed, and brought back from each place it can lie.

    python benchmarks/tiers.py [--tokens 4000] [--rounds 5] [--model smollm2] [--folder PATH]
        [--json] [--keep]

In each round a prompt that nobody has seen goes through all ways, one after another: computed;
found in the pool; put to sleep and brought back from host memory; found on disk by an engine that
has just started; found in Redis by another engine than the one that put it there. The files are put
out of the page cache first, so that a disk is a disk. Every answer must be the same, and the ledger
must say the way. The start of an engine is not in the times. Needs ``redis-server`` or
``valkey-server``.
"""

import argparse
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import redis

import results
from kvikk import LLM, __version__
from kvikk.cache.ledger.records import Cause
from kvikk.engine.sleeping import put_to_sleep
from tables import tier_table

WAYS = {
    "computed": None,
    "from the pool": Cause.HIT_DEVICE,
    "from host memory": Cause.HIT_HOST,
    "from disk, after a restart": Cause.HIT_DISK,
    "from Redis, by another engine": Cause.HIT_REMOTE,
}
ANSWER_TOKENS = 4
MIB = 1 << 20


class Ways:
    """Engines of one model over a folder and a Redis."""

    def __init__(self, model: str, tokens: int, threads: int, folder: Path, url: str) -> None:
        self.seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        self.prompt_bytes = 0
        self._folder = folder
        self._fixed: dict[str, Any] = {
            "model": model,
            "threads": threads,
            "kv_memory_bytes": 512 * MIB,
            "max_context_tokens": tokens + 64,
            "speculation": False,
        }
        self._url = url
        self._first = self._engine(host_tier_bytes=512 * MIB, disk_tier=folder, redis_tier=url)
        self._other = self._engine(redis_tier=url)

    def round(self, prompt: list[int]) -> None:
        """One prompt, all ways."""
        first = self._first
        engine = first.loaded.engine
        answers = [self._ask(first, prompt, "computed"), self._ask(first, prompt, "from the pool")]
        tiering = engine.tiering
        assert tiering is not None
        session = list(engine.sessions)[-1]
        slept = put_to_sleep(engine, session)
        assert slept.complete, "the tiers' queue was full"
        assert tiering.drain(120), "tiers did not take it in two minutes"
        block_bytes = first.loaded.memory.groups[0].block_bytes
        self.prompt_bytes = slept.freed_blocks * block_bytes
        answers.append(self._ask(first, prompt, "from host memory"))
        # The folder is one engine's at a time: the writer lets go of it, and comes back.
        assert tiering.drain(120)
        engine.close()
        _put_out_of_page_cache(self._folder)
        restarted = self._engine(disk_tier=self._folder)
        answers.append(self._ask(restarted, prompt, "from disk, after a restart"))
        restarted.loaded.engine.close()
        answers.append(self._ask(self._other, prompt, "from Redis, by another engine"))
        assert answers == answers[:1] * len(WAYS), f"answers differ: {answers}"
        self._first = self._engine(
            host_tier_bytes=512 * MIB, disk_tier=self._folder, redis_tier=self._url
        )

    def close(self) -> None:
        """End the engines."""
        self._first.loaded.engine.close()
        self._other.loaded.engine.close()

    def _engine(self, **tiers: Any) -> LLM:
        llm = LLM(**self._fixed, **tiers)
        llm.generate([[1, 2, 3]], max_tokens=2)  # what is done once is done
        return llm

    def _ask(self, llm: LLM, prompt: list[int], way: str) -> tuple[int, ...]:
        completion = llm.generate([prompt], max_tokens=ANSWER_TOKENS, ignore_eos=True)[0]
        timings = completion.timings
        assert timings.first_token_s is not None
        self.seconds[way].append(timings.first_token_s - timings.arrived_s)
        books = llm.loaded.engine.books
        assert books is not None
        (account,) = books.accounts.latest(1)
        hits = {span.cause for span in account.ledger.spans if span.cause.is_hit}
        expected = WAYS[way]
        if hits != ({expected} if expected else set()):
            sys.exit(
                f"{way}: the ledger says {[span.cause.value for span in account.ledger.spans]}"
            )
        return completion.token_ids


def _put_out_of_page_cache(folder: Path) -> None:
    """What is written through and not wanted any more, the kernel drops."""
    for path in folder.glob("*/*"):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


@contextmanager
def redis_server() -> Iterator[str]:
    """A server of our own on this machine; its URL."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        sys.exit("redis-server is needed; on Debian: apt-get install redis-server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
        stdout=subprocess.DEVNULL,
    )
    url = f"redis://127.0.0.1:{port}/0"
    client = redis.Redis.from_url(url)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                client.ping()
                break
            except redis.ConnectionError:
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"{program} does not answer")
                time.sleep(0.05)
        yield url
    finally:
        client.close()
        process.kill()
        process.wait()


def main() -> None:
    """Measure, print a Markdown table, keep it if that is wanted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=4000, help="of the prompt")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: $TMPDIR")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true", help="put it into results/")
    arguments = parser.parse_args()
    chance = random.Random(time.time_ns())
    with (
        redis_server() as url,
        tempfile.TemporaryDirectory(dir=arguments.folder) as folder,
    ):
        ways = Ways(arguments.model, arguments.tokens, arguments.threads, Path(folder), url)
        for number in range(arguments.rounds):
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
            ways.round(chance.choices(range(1_000, 40_000), k=arguments.tokens))
        server_version = redis.Redis.from_url(url).info("server")["redis_version"]
        ways.close()
    entry = {
        **results.conditions(arguments.threads),
        "versions": f"kvikk {__version__}, Redis {server_version}, redis-py {redis.__version__}",
        "tokens": arguments.tokens,
        "prompt_bytes": ways.prompt_bytes,
        "seconds": {
            way: [round(value, 4) for value in values] for way, values in ways.seconds.items()
        },
    }
    if arguments.keep:
        results.add("tiers", {arguments.model: entry})
    if arguments.json:
        times = {way: median(values) for way, values in ways.seconds.items()}
        print(json.dumps({**entry, "median_s": times}))
    else:
        print(tier_table({arguments.model: entry}))


if __name__ == "__main__":
    main()
