"""Prompts to compare implementations on: many kinds of text, some of exact lengths."""

from pathlib import Path

from kvikk.text.tokenizer import Tokenizer

VARIED = (
    "🎈 Balloons over the harbour, and",
    "The capital of France is",
    "Once upon a time, in a village between two rivers, there lived",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    '{"name": "kvikk", "version": 1, "tags": ["fast", "',
    "SELECT customer, SUM(amount) FROM orders WHERE",
    "#include <stdio.h>\n\nint main(void) {\n",
    "1, 1, 2, 3, 5, 8, 13,",
    "Q: What is 17 + 25?\nA:",
    "Die Hauptstadt von Norwegen heißt",
    "Il était une fois une princesse qui",
    "日本の首都は",
    "Столица России — это город",
    "العاصمة المصرية هي",
    "नमस्ते, आप कैसे",
    "E = mc² means that",
    "   \n\n\t leading space matters",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
)

_LONG_TEXT = (Path(__file__).parents[2] / "LICENSE").read_text()


def exact_prompt(tokenizer: Tokenizer, num_tokens: int) -> list[int]:
    """Real prose of exactly ``num_tokens`` tokens."""
    text = _LONG_TEXT + "\n".join(VARIED) + _LONG_TEXT
    token_ids = tokenizer.encode(text)
    assert len(token_ids) >= num_tokens
    return token_ids[:num_tokens]
