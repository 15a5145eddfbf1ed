"""How far a backend's predictions are from fp32 arithmetic on the same file, beside llama.cpp's.

    python benchmarks/quality.py [--tokens 10240] [--text FILE …] [--model NAME …]
    LLAMA_CPP_PYTHON=path/to/python   an interpreter with llama-cpp-python, to be measured too

The reference backend's probabilities p are the truth; a row's KL divergence is Σ p log(p/q), in
nats. The text is cut into sequences of 1,024 tokens, past Gemma's window. Prints a Markdown table.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data import topics
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvikk.backends.base import Backend, Batch, Plan
from kvikk.backends.cpu.backend import CpuBackend
from kvikk.backends.reference.backend import ReferenceBackend
from kvikk.files.sources import ModelSource, resolve
from kvikk.models.decoder import Decoder
from kvikk.models.load import load_decoder
from kvikk.shapes.shape import cache_groups
from kvikk.text.tokenizer import load_tokenizer

SEQUENCE_TOKENS = 1024
PIECE_TOKENS = 128
BLOCK_TOKENS = 32
Logits = NDArray[np.float32]


class Predictor(Protocol):
    """Reads a sequence piece by piece and says what it expects after each token."""

    def restart(self) -> None:
        """Begin a new sequence."""

    def read(self, token_ids: list[int]) -> Logits:
        """Logits after each token, ``[tokens, vocabulary]``."""


class BackendPredictor:
    """A backend with blocks for one sequence."""

    def __init__(self, backend: Backend, decoder: Decoder, kv_dtype: str) -> None:
        self._backend = backend
        groups = cache_groups(decoder.shape)
        num_blocks = SEQUENCE_TOKENS // BLOCK_TOKENS
        counts = (num_blocks,) * len(groups)
        plan = Plan(groups, counts, BLOCK_TOKENS, kv_dtype, PIECE_TOKENS, 1, SEQUENCE_TOKENS)
        backend.load(decoder, plan)
        self._tables = tuple(np.arange(num_blocks, dtype=np.int32)[None] for _ in groups)
        self._position = 0

    def restart(self) -> None:
        """Begin a new sequence."""
        self._position = 0

    def read(self, token_ids: list[int]) -> Logits:
        """Logits after each token, ``[tokens, vocabulary]``."""
        rows = np.arange(len(token_ids), dtype=np.int32)
        batch = Batch(
            np.array(token_ids, np.int32), rows + self._position, rows * 0, self._tables, rows
        )
        self._position += len(token_ids)
        return self._backend.forward(batch)


class LlamaCppPredictor:
    """llama.cpp in a process of its own."""

    def __init__(self, python: str, source: ModelSource, vocabulary_size: int) -> None:
        script = Path(__file__).with_name("llama_cpp_peer.py")
        threads = str(os.cpu_count() or 1)
        self._process = subprocess.Popen(
            [python, script, "logits", source.path, threads, str(SEQUENCE_TOKENS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._vocabulary_size = vocabulary_size

    def restart(self) -> None:
        """Begin a new sequence."""
        self._send("new")

    def read(self, token_ids: list[int]) -> Logits:
        """Logits after each token, ``[tokens, vocabulary]``."""
        self._send(" ".join(map(str, token_ids)))
        assert self._process.stdout is not None
        num_bytes = 4 * len(token_ids) * self._vocabulary_size
        data = self._process.stdout.read(num_bytes)
        return np.frombuffer(data, np.float32).reshape(len(token_ids), self._vocabulary_size)

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()


@dataclass
class Agreement:
    """What was seen of one predictor so far, a number a token."""

    divergences: list[float] = field(default_factory=list)
    same_choices: list[bool] = field(default_factory=list)

    def add(self, truth: Logits, logits: Logits) -> None:
        """Compare rows of logits, one row at a time to keep memory small."""
        for true_row, row in zip(truth, logits, strict=True):
            log_p, log_q = log_softmax(true_row), log_softmax(row)
            self.divergences.append(float(np.sum(np.exp(log_p) * (log_p - log_q))))
            self.same_choices.append(bool(true_row.argmax() == row.argmax()))


def log_softmax(row: Logits) -> NDArray[np.float64]:
    """Logarithms of the probabilities that a row of logits gives."""
    shifted: NDArray[np.float64] = row.astype(np.float64) - row.max()
    shifted -= float(np.log(np.sum(np.exp(shifted))))
    return shifted


def default_text() -> str:
    """English that every Python carries: the help texts of the language reference."""
    return "\n\n".join(topics.topics.values())


def read_text(path: Path) -> str:
    """The text of a file; of JSON lines, every string in them of some length, in order."""
    text = path.read_text()
    if path.suffix != ".jsonl":
        return text
    return "\n".join(string for line in text.splitlines() for string in _strings(json.loads(line)))


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str) and len(value) > 40:
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def sequences(model: ModelSource, text: str, num_tokens: int) -> list[list[int]]:
    """The first ``num_tokens`` of ``text``, each sequence beginning as a prompt would."""
    tokenizer = load_tokenizer(model)
    token_ids = tokenizer.encode(text[: 16 * num_tokens], special=False, add_bos=False)
    opening = tokenizer.encode("", special=False)
    step = SEQUENCE_TOKENS - len(opening)
    count = -(-num_tokens // SEQUENCE_TOKENS)
    if len(token_ids) < count * step:
        sys.exit(f"the text has {len(token_ids)} tokens; {count * step} are needed")
    return [opening + token_ids[i * step : (i + 1) * step] for i in range(count)]


def measure(model: str, text: str, num_tokens: int) -> dict[str, Agreement]:
    """Agreement with the reference, by predictor."""
    source = resolve(model)
    decoder = load_decoder(source)
    truth = BackendPredictor(ReferenceBackend(), decoder, "f32")
    predictors: dict[str, Predictor] = {
        "kvikk, KV in bf16": BackendPredictor(CpuBackend(), decoder, "bf16"),
        "kvikk, KV in f32": BackendPredictor(CpuBackend(), decoder, "f32"),
    }
    python = os.environ.get("LLAMA_CPP_PYTHON")
    if python:
        version = subprocess.run(
            [python, Path(__file__).with_name("llama_cpp_peer.py"), "version"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        peer = LlamaCppPredictor(python, source, decoder.vocabulary_size)
        predictors[f"llama.cpp (llama-cpp-python {version}), KV in f16"] = peer
    agreements = {name: Agreement() for name in predictors}
    todo = sequences(source, text, num_tokens)
    for number, sequence in enumerate(todo):
        print(f"{model}: sequence {number + 1} of {len(todo)}", file=sys.stderr)
        truth.restart()
        for predictor in predictors.values():
            predictor.restart()
        for start in range(0, SEQUENCE_TOKENS, PIECE_TOKENS):
            piece = sequence[start : start + PIECE_TOKENS]
            true_logits = truth.read(piece)
            for name, predictor in predictors.items():
                agreements[name].add(true_logits, predictor.read(piece))
    return agreements


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=10_240)
    parser.add_argument("--text", type=Path, nargs="*", default=[])
    parser.add_argument("--model", nargs="*", default=["smollm2", "gemma3-270m"])
    arguments = parser.parse_args()
    text = "\n\n".join(map(read_text, arguments.text)) or default_text()
    print("| model | engine | tokens | mean KL | 99th percentile | same first choice |")
    print("|---|---|---|---|---|---|")
    for model in arguments.model:
        for name, agreement in measure(model, text, arguments.tokens).items():
            divergences = np.array(agreement.divergences)
            print(
                f"| {model} | {name} | {len(divergences):,} | {divergences.mean():.5f} "
                f"| {np.percentile(divergences, 99):.4f} "
                f"| {100 * np.mean(agreement.same_choices):.2f} % |",
                flush=True,
            )


if __name__ == "__main__":
    main()
