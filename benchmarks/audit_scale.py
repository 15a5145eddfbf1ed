"""``kvikk audit`` on a log of a gigabyte: requests a second and memory, beside parsing alone.

    python benchmarks/audit_scale.py --size 1GiB

Conversations of several tenants grow by a turn a request, as agents' do, through Anthropic's and
OpenAI's APIs; some have a clock in front, some shuffle their tools. Each request carries all of its
history, so most of a log is text that was there before. The file is written to a temporary folder,
or kept with ``--keep``.
"""

import argparse
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from kvikk.shapes.quantities import parse_bytes

_TENANTS = 12
_OPEN = 24
_TURNS = (6, 30)
_SENTENCE = (
    "the cache of a block is read before it is written and what was said once need not be said "
    "again when a request comes late for its share of tokens in memory on another machine"
)
_WORDS = _SENTENCE.split()


def text(chance: random.Random, num_words: int) -> str:
    """Words in random order."""
    return " ".join(chance.choices(_WORDS, k=num_words))


class Conversation:
    """One that grows. ``tenant`` says which instructions and tools it has in common with others."""

    def __init__(self, tenant: int, chance: random.Random) -> None:
        own = random.Random(tenant)
        self.tenant, self.chance = tenant, chance
        self.rules = text(own, own.randint(900, 2500))
        self.tools = [
            {
                "name": f"tool_{index}",
                "description": text(own, 40),
                "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}},
            }
            for index in range(own.randint(4, 16))
        ]
        self.messages: list[dict[str, Any]] = []
        self.left = chance.randint(*_TURNS)

    def next(self, at_s: float) -> dict[str, Any]:
        """Its next request, as a line of kvikk's own log."""
        chance, call = self.chance, f"call_{self.chance.getrandbits(48):x}"
        if self.messages:
            self.messages += [
                {"role": "assistant", "content": text(chance, chance.randint(20, 200))},
                {"role": "user", "content": f"{call}: {text(chance, chance.randint(20, 800))}"},
            ]
        else:
            self.messages = [{"role": "user", "content": text(chance, 60)}]
        self.left -= 1
        clock = f"It is {at_s:.0f}. " if self.tenant % 4 == 0 else ""
        tools = self.tools
        if self.tenant % 4 == 1 and chance.random() < 0.2:
            tools = chance.sample(tools, len(tools))
        if self.tenant % 3:
            control = {"cache_control": {"type": "ephemeral"}}
            newest = {**self.messages[-1]}
            newest["content"] = [{"type": "text", "text": newest["content"], **control}]
            body = {
                "model": "claude-sonnet-4-5",
                "max_tokens": 1024,
                "tools": tools,
                "system": [{"type": "text", "text": clock + self.rules, **control}],
                "messages": [*self.messages[:-1], newest],
            }
        else:
            functions = [
                {"type": "function", "function": {**tool, "parameters": tool["input_schema"]}}
                for tool in tools
            ]
            system = {"role": "system", "content": clock + self.rules}
            body = {
                "model": "gpt-4.1",
                "tools": functions,
                "messages": [system, *self.messages],
            }
        return {
            "at_s": at_s,
            "first_byte_s": at_s + 0.6,
            "account": f"tenant-{self.tenant}",
            "request": body,
        }


def lines(size_bytes: int, seed: int) -> Iterator[bytes]:
    """A log of about that size."""
    chance = random.Random(seed)
    running: list[Conversation] = []
    at_s, written = 1.76e9, 0
    while written < size_bytes:
        if len(running) < _OPEN:
            running.append(Conversation(chance.randrange(_TENANTS), chance))
        one = chance.choice(running)
        at_s += chance.expovariate(2.0)
        line = orjson.dumps(one.next(round(at_s, 3))) + b"\n"
        if not one.left:
            running.remove(one)
        written += len(line)
        yield line


def timed(name: str, command: list[str], num_lines: int, size_bytes: int) -> None:
    """Run ``command`` and print its CPU time, lines and bytes a second, and memory."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started_s = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = _wait(process)
    wall_s = time.perf_counter() - started_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"{name:<22}{cpu_s:8.1f} s CPU {wall_s:8.1f} s {num_lines / cpu_s:10,.0f} lines/CPU s "
        f"{size_bytes / cpu_s / 1e6:8,.1f} MB/CPU s {usage.ru_maxrss / 1024:8,.0f} MiB resident"
        + (f"  (exit {status})" if status else "")
    )


def _wait(process: "subprocess.Popen[bytes]") -> tuple[int, int, resource.struct_rusage]:
    pid, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return pid, process.returncode, usage


def main() -> None:
    """Write a log and time what reads it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="1GiB")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="write the log there and leave it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = options.keep or Path(folder) / "log.jsonl"
        num_lines = 0
        with log.open("wb") as out:
            for line in lines(parse_bytes(options.size), options.seed):
                out.write(line)
                num_lines += 1
        size_bytes = log.stat().st_size
        print(f"{size_bytes / 1e6:,.0f} MB, {num_lines:,} requests")
        parse = "import orjson,sys\nfor line in open(sys.argv[1],'rb'): orjson.loads(line)"
        timed("orjson.loads", [sys.executable, "-c", parse, str(log)], num_lines, size_bytes)
        if jq := shutil.which("jq"):
            timed("jq .at_s", [jq, ".at_s", str(log)], num_lines, size_bytes)
        audit = [sys.executable, "-m", "kvikk", "audit", str(log), "--no-mends", "--json"]
        timed("kvikk audit", audit, num_lines, size_bytes)


if __name__ == "__main__":
    main()
