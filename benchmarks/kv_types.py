"""What each type of keys and values costs in quality: perplexity, divergence, greedy answers.

    python benchmarks/kv_types.py [--tokens 10240] [--answers 24] [--model NAME …]

The same weights and kernels throughout, so that what differs is the type alone: KV in f32 is what
the others are compared with. The text is quality.py's, cut into sequences of 1,024 tokens. An
answer continues the first 64 tokens of a sequence by the likeliest token, 64 times. Prints a
Markdown table.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from kvikk.backends.cpu.backend import CpuBackend
from kvikk.files.sources import resolve
from kvikk.models.load import load_decoder
from kvikk.shapes.cost import cache_cost
from kvikk.shapes.dtypes import KVIKK_DTYPE_NAMES, as_kvikk_keeps, kv_dtypes
from quality import (
    PIECE_TOKENS,
    SEQUENCE_TOKENS,
    Agreement,
    BackendPredictor,
    Logits,
    default_text,
    log_softmax,
    sequences,
)

PROMPT_TOKENS = 64
ANSWER_TOKENS = 64


@dataclass
class Quality:
    """What was seen of one type."""

    agreement: Agreement = field(default_factory=Agreement)
    surprises: list[float] = field(default_factory=list)  # nats, a token of the text
    equal_tokens: list[int] = field(default_factory=list)  # before an answer first differs

    def read(self, truth: Logits, logits: Logits, following: list[int]) -> None:
        """Logits after some tokens of the text, and the tokens that followed."""
        self.agreement.add(truth, logits)
        for row, token in zip(logits, following, strict=False):
            self.surprises.append(-float(log_softmax(row)[token]))

    def cells(self) -> Iterator[str]:
        """The cells of a row of the table."""
        yield f"{np.exp(np.mean(self.surprises)):.3f}"
        yield f"{np.mean(self.agreement.divergences):.5f}"
        yield f"{100 * np.mean(self.agreement.same_choices):.2f} %"
        whole = sum(count == ANSWER_TOKENS for count in self.equal_tokens)
        yield f"{whole} of {len(self.equal_tokens)}"
        yield f"{np.mean(self.equal_tokens):.1f}"


def answer(predictor: BackendPredictor, prompt: list[int]) -> list[int]:
    """What the model would say, the likeliest token each time."""
    predictor.restart()
    token_ids = prompt
    said: list[int] = []
    for _ in range(ANSWER_TOKENS):
        token_ids = [int(predictor.read(token_ids)[-1].argmax())]
        said += token_ids
    return said


def measure(model: str, num_tokens: int, num_answers: int) -> dict[str, Quality]:
    """Every type's quality, by its name."""
    source = resolve(model)
    decoder = load_decoder(source)
    predictors = {name: BackendPredictor(CpuBackend(), decoder, name) for name in KVIKK_DTYPE_NAMES}
    found = {name: Quality() for name in predictors}
    todo = sequences(source, default_text(), max(num_tokens, num_answers * PROMPT_TOKENS))
    for number, sequence in enumerate(todo[: -(-num_tokens // SEQUENCE_TOKENS)]):
        print(f"{model}: sequence {number + 1}", file=sys.stderr)
        for predictor in predictors.values():
            predictor.restart()
        for start in range(0, SEQUENCE_TOKENS, PIECE_TOKENS):
            piece = sequence[start : start + PIECE_TOKENS]
            following = sequence[start + 1 : start + PIECE_TOKENS + 1]
            truth = predictors["f32"].read(piece).copy()
            found["f32"].read(truth, truth, following)
            for name, predictor in predictors.items():
                if name != "f32":
                    found[name].read(truth, predictor.read(piece), following)
    text = [token for sequence in todo for token in sequence]
    for number in range(num_answers):
        print(f"{model}: answer {number + 1} of {num_answers}", file=sys.stderr)
        start = len(text) // num_answers * number
        prompt = text[start : start + PROMPT_TOKENS]
        true_answer = answer(predictors["f32"], prompt)
        for name, predictor in predictors.items():
            said = true_answer if name == "f32" else answer(predictor, prompt)
            same = [a == b for a, b in zip(said, true_answer, strict=True)]
            found[name].equal_tokens.append(same.index(False) if False in same else len(same))
    return found


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=10_240)
    parser.add_argument("--answers", type=int, default=24)
    parser.add_argument("--model", nargs="*", default=["smollm2", "gemma3-270m"])
    arguments = parser.parse_args()
    print(
        "| model | KV | bytes a token | perplexity | mean KL | same first choice "
        "| equal answers | equal tokens |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for model in arguments.model:
        shape = load_decoder(resolve(model)).shape
        for name, quality in measure(model, arguments.tokens, arguments.answers).items():
            a_token = cache_cost(shape, as_kvikk_keeps(kv_dtypes(name))).bytes_per_token
            cells = " | ".join(quality.cells())
            print(f"| {model} | {name} | {a_token:,} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
