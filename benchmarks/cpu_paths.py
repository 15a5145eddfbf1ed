"""How fast each code path of the CPU backend is on this CPU, the lesser ones masked down.

    python benchmarks/cpu_paths.py [--model smollm2] [--rounds 3] [--threads N]

The paths take turns, each in a process of its own. Prints a Markdown table: medians in tokens a
second, and how they compare with the best path's.
"""

import argparse
import os
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from contestants import PeerProcess, contestants
from kvikk.backends.cpu.features import features_of, runnable_paths

MEASURES = {
    "prefill 512": ("prefill", {"tokens": 512}),
    "decode at 64": ("decode", {"context": 64, "tokens": 32}),
}


def measure(model: str, threads: int, rounds: int) -> dict[tuple[str, str], list[float]]:
    """Tokens a second of each path and measure; a first round is to warm up."""
    speeds: dict[tuple[str, str], list[float]] = {}
    ours = contestants()[0]
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        peers = {}
        for path in runnable_paths():
            # The peer has a kernel of its own, which settles numba before kvikk is there.
            os.environ["KVIKK_CPU"], os.environ["NUMBA_CPU_FEATURES"] = path, features_of(path)
            peers[path] = PeerProcess(ours, model, threads, logs / path)
            stack.callback(peers[path].close)
        for number in range(rounds + 1):
            for name, (method, parameters) in MEASURES.items():
                for path, peer in peers.items():
                    speed = peer.ask(method, **parameters)
                    if number > 0:
                        speeds.setdefault((path, name), []).append(speed)
    return speeds


def main() -> None:
    """Measure, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    speeds = measure(arguments.model, arguments.threads, arguments.rounds)
    medians = {key: statistics.median(values) for key, values in speeds.items()}
    best = runnable_paths()[0]
    print(f"| path | {' | '.join(MEASURES)} |\n|{'---|' * (len(MEASURES) + 1)}")
    for path in runnable_paths():
        cells = [
            f"{medians[path, name]:,.0f}"
            + (f", {medians[path, name] / medians[best, name]:.2f}x" if path != best else "")
            for name in MEASURES
        ]
        print(f"| `{path}` | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
