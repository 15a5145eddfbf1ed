"""The benchmark of guessing ahead, small."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "speculation.py"


def test_guesses_take_fewer_steps_for_the_same_answer_where_a_session_repeats_itself(
    tmp_path: Path,
) -> None:
    log = "".join(f"step {number}: the build passes, the tests fail\n" for number in range(12))
    lines = [{"input": "step 1"}, {"input": log}]
    (tmp_path / "a_session.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = ["--rounds", "1", "--answer-tokens", "32", "--max-requests", "1", "--json"]
    done = subprocess.run(
        [sys.executable, BENCHMARK, tmp_path, "--threads", "1", *options],
        capture_output=True,
        check=True,
    )
    session, question = json.loads(done.stdout)["rows"]
    assert session["name"] == "a_session"
    for row in (session, question):
        assert row["answer_tokens"] == 32
        assert row["steps"] == 32 - row["accepted_tokens"]
    assert session["steps"] < 20
