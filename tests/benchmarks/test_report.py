"""The page of benchmarks, and how peers are asked."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

PEER = """
import sys
from protocol import prompt, serve

class Counter:
    def __init__(self, model, threads):
        print("engines print what they like")
        self.model = model
    def describe(self):
        return {"version": self.model}
    def close(self):
        print("closed", file=sys.stderr)
    def prefill(self, tokens):
        return len(prompt(0, tokens)), 0.5
    def decode(self, context, tokens):
        raise ValueError("no such context")

serve(Counter)
"""


def test_the_page_holds_the_tables_of_the_committed_results() -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "report.py", "--check"], capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()


def test_a_peer_answers_in_json_whatever_its_engine_prints_and_goes_on_after_a_failure() -> None:
    requests = [
        {"measure": "decode", "context": 9, "tokens": 1},
        {"measure": "prefill", "tokens": 3},
    ]
    done = subprocess.run(
        [sys.executable, "-c", PEER, "a model", "2"],
        input="".join(json.dumps(request) + "\n" for request in requests),
        env={"PYTHONPATH": str(BENCHMARKS / "peers")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert list(map(json.loads, done.stdout.splitlines())) == [
        {"version": "a model"},
        {"error": "ValueError: no such context"},
        {"amount": 3, "seconds": 0.5},
    ]
    assert set(done.stderr.splitlines()) == {"engines print what they like", "closed"}
