"""Tokens a second beside the peers: ``make bench``.

    python benchmarks/speed.py [--models smollm2 …] [--peers kvikk 'llama.cpp' …]
        [--only prefill decode-64 batch …] [--rounds 3] [--threads N] [--json] [--keep]
    YARDSTICK=path/to/yardstick.py    a script that prints one JSON line of SmolLM2's speeds

All that are installed (``peers/install.sh``) take part. They take turns within a round, a measure
at a time, since a machine's speed drifts; figures are medians over the rounds with their spread.
``--keep`` puts them among ``results/``, which ``report.py`` makes the tables in docs from.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import results
from contestants import Contestant, PeerError, PeerProcess, contestants
from cores import round_trip_ns
from models import MODELS_OF_THE_COMPARISON
from tables import speed_tables

DECODED_TOKENS = 32


@dataclass(frozen=True)
class Measure:
    """One thing to measure; ``parameters`` are those of the peers' method."""

    name: str
    method: str
    parameters: dict[str, int]


MEASURES = [
    *(
        Measure(f"prefill-{tokens}", "prefill", {"tokens": tokens})
        for tokens in (128, 512, 1024, 4096)
    ),
    *(
        Measure(f"decode-{context}", "decode", {"context": context, "tokens": DECODED_TOKENS})
        for context in (64, 1024)
    ),
    Measure("bandwidth", "bandwidth", {}),
    *(
        Measure(f"batch-{streams}", "batch", {"streams": streams, "prompt": 128, "output": 128})
        for streams in (8, 32)
    ),
]


def chosen(only: Sequence[str]) -> list[Measure]:
    """The measures whose name or kind is among ``only``; all if that is empty.

    Decoding takes the bandwidth with it, to have something to compare with.
    """
    wanted = {*only, "bandwidth"} if any(name.startswith("decode") for name in only) else {*only}
    found = [one for one in MEASURES if not wanted or one.name in wanted or one.method in wanted]
    if not found:
        sys.exit(f"--only knows {', '.join(one.name for one in MEASURES)}")
    return found


def measure_model(
    model: str,
    taking_part: Sequence[Contestant],
    measures: Sequence[Measure],
    rounds: int,
    threads: int,
    after_round: Callable[[results.Entries], None],
) -> results.Entries:
    """The entries of one model. A peer that fails at something is left out of it, with a line.

    ``after_round`` is given them as they are so far, so that what breaks off is not lost.
    """
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        peers: list[PeerProcess] = []
        for contestant in taking_part:
            if not any(contestant.can_take_part(model, one.method) for one in measures):
                continue
            _tell(f"{model}: starting {contestant.name}")
            try:
                peer = PeerProcess(contestant, model, threads, logs / f"{len(peers)}.log")
            except PeerError as error:
                _tell(str(error))
                continue
            stack.callback(peer.close)
            peers.append(peer)
        speeds: dict[tuple[str, str], list[float]] = {}
        given_up: set[tuple[str, str]] = set()
        round_trips_ns: list[float | None] = []
        entries: results.Entries = {}
        # The first is to warm up, with the largest of each kind: nobody's memory grows any more.
        for number in range(rounds + 1):
            for one in measures if number else _largest_of_each_kind(measures):
                for peer in peers:
                    key = (one.name, peer.contestant.name)
                    if key in given_up or not peer.contestant.can_take_part(model, one.method):
                        continue
                    _tell(f"{model}: round {number} of {rounds}, {one.name}, {key[1]}")
                    try:
                        speed = peer.ask(one.method, **one.parameters)
                    except PeerError as error:
                        _tell(str(error))
                        given_up.add(key)
                        continue
                    if number:
                        speeds.setdefault(key, []).append(speed)
            if number:
                round_trips_ns.append(round_trip_ns())
                about = {**results.conditions(threads), "round_trips_ns": round_trips_ns}
                entries = _entries(about, model, measures, peers, speeds)
                after_round(entries)
        return entries


def _largest_of_each_kind(measures: Sequence[Measure]) -> list[Measure]:
    return list({one.method: one for one in measures}.values())


def _entries(
    about: Mapping[str, Any],
    model: str,
    measures: Sequence[Measure],
    peers: Sequence[PeerProcess],
    speeds: Mapping[tuple[str, str], list[float]],
) -> results.Entries:
    """Per second: tokens, of bandwidth bytes."""
    entries = {}
    for one in measures:
        values = {
            peer.contestant.name: {**peer.description, "per_s": per_s}
            for peer in peers
            if (per_s := speeds.get((one.name, peer.contestant.name)))
        }
        if values:
            entries[f"{model}, {one.name}"] = {**about, "peers": values}
    return entries


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Measure in turns, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    everyone = contestants()
    names = [contestant.name for contestant in everyone]
    parser.add_argument("--models", nargs="+", default=list(MODELS_OF_THE_COMPARISON))
    parser.add_argument("--peers", nargs="+", default=names, help=", ".join(names))
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", action="store_true", help="entries instead of tables")
    parser.add_argument("--keep", action="store_true", help="put them among the results")
    arguments = parser.parse_args()
    for given, known in ((arguments.models, MODELS_OF_THE_COMPARISON), (arguments.peers, names)):
        for name in given:
            if name not in known:
                parser.error(f"{name!r} is not one of {', '.join(known)}")

    measured: results.Entries = {}
    taking_part = [one for one in everyone if one.name in arguments.peers]
    for model in arguments.models:
        measured |= measure_model(
            model,
            taking_part,
            chosen(arguments.only),
            arguments.rounds,
            arguments.threads,
            partial(results.add, "speed") if arguments.keep else lambda entries: None,
        )
    print(json.dumps(measured, indent=1) if arguments.json else speed_tables(measured))


if __name__ == "__main__":
    main()
