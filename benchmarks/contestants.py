"""Who takes part in a comparison, and the conversation with each one's process."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models import form_of
from places import SCRIPTS, python_of

# What a peer may be asked; see ``peers/protocol.py``.
SINGLE = ("prefill", "decode")


@dataclass(frozen=True)
class Contestant:
    """One engine with one form of a model.

    ``form`` is the form's name, or None for a script that asks for it itself. ``environment`` None
    is our own. ``models`` None: all.
    """

    name: str
    script: str
    form: str | None
    environment: str | None
    measures: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    models: tuple[str, ...] | None = None

    def can_take_part(self, model: str, measure: str) -> bool:
        """Whether it is installed and does this measure of this model."""
        return (
            measure in self.measures
            and (self.models is None or model in self.models)
            and python_of(self.environment) is not None
        )


def contestants() -> list[Contestant]:
    """All that are known; ours first, which the others are compared with."""
    everything = (*SINGLE, "batch")
    known = [
        Contestant("kvikk", "kvikk_peer.py", "gguf", None, (*everything, "bandwidth")),
        Contestant("llama.cpp", "llama_cpp_peer.py", "gguf", "llama_cpp", SINGLE),
        Contestant("llama.cpp, Q4_0", "llama_cpp_peer.py", "q4_0", "llama_cpp", SINGLE),
        Contestant("vLLM, bf16", "vllm_peer.py", "folder", "vllm", everything),
        Contestant("transformers, bf16", "transformers_peer.py", "folder", "transformers", SINGLE),
        Contestant("kvikk over HTTP", "http_peer.py", None, None, ("batch",), ("kvikk",)),
    ]
    known += [
        Contestant(kind, "http_peer.py", None, "llama_server", ("batch",), (kind,))
        for kind in ("llama-server", "llama-server, Q4_0")
    ]
    script = os.environ.get("YARDSTICK")
    if script:
        path = str(Path(script).resolve())
        known.append(
            Contestant(
                "yardstick", "yardstick_peer.py", "gguf", None, everything, (path,), ("smollm2",)
            )
        )
    return known


class PeerError(Exception):
    """A peer could not do what it was asked."""


class PeerProcess:
    """A contestant with its model loaded, in a process of its own; logs go to ``log``."""

    def __init__(self, contestant: Contestant, model: str, threads: int, log: Path) -> None:
        self.contestant = contestant
        # Those that speak HTTP run in our interpreter, whatever they start.
        python = python_of(None if contestant.form is None else contestant.environment)
        what = model if contestant.form is None else form_of(model, contestant.form)
        command: Sequence[Any] = [
            python,
            SCRIPTS / contestant.script,
            what,
            str(threads),
            *contestant.arguments,
        ]
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self.description = self._answer()

    def ask(self, measure: str, **parameters: int) -> float:
        """Amount a second. Raises PeerError with the peer's own words."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"measure": measure, **parameters}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise PeerError(f"{self.contestant.name}: {answer['error']}")
        return float(answer["amount"] / answer["seconds"])

    def close(self) -> None:
        """Close its pipe, upon which it ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            end = "".join(self._log.read_text().splitlines(keepends=True)[-15:])
            raise PeerError(f"{self.contestant.name} ended:\n{end}")
        answer: dict[str, Any] = json.loads(line)
        return answer
