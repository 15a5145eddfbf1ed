"""lm-eval's own command over HTTP, on a server that is started for it: a small evaluation.

    benchmarks/peers/install.sh lm_eval
    .venv/bin/python benchmarks/evaluate.py --limit 4

The questions are those of ``lm_eval/``; with ``--tasks`` any that lm-eval knows and can fetch.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import httpx

from places import python_of
from servers import KINDS, running

ROOT = Path(__file__).parents[1]  # the tasks name their questions from here


def main() -> None:
    """Evaluate, and exit as lm-eval does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2", help="as models.py names it")
    parser.add_argument("--tasks", default="kvikk_small,kvikk_small_generate")
    parser.add_argument("--limit", type=int, help="questions of each task; default: all")
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    python = python_of("lm_eval")
    if python is None:
        sys.exit("lm_eval is not installed; run benchmarks/peers/install.sh lm_eval")
    kind = KINDS["kvikk"]
    with running(kind, chosen.model, threads=chosen.threads, slots=4, context=8192) as server:
        (model,) = httpx.get(f"{server.base_url}/models").json()["data"]
        url = f"{server.base_url}/completions"
        command = [
            *(python.with_name("lm_eval"), "run", "--model", "local-completions"),
            *("--model_args", f"model={model['id']},base_url={url},num_concurrent=4"),
            *("--include_path", "benchmarks/lm_eval", "--tasks", chosen.tasks),
        ]
        if chosen.limit is not None:
            command += ["--limit", str(chosen.limit)]
        code = subprocess.run(command, cwd=ROOT).returncode
    sys.exit(code)


if __name__ == "__main__":
    main()
