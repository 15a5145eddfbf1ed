"""How byte-level BPE vocabularies cut text into words before merging, by GGUF's ``pre`` name.

Each entry is the patterns a family was trained with, applied one after the other; what a pattern
does not match stays a piece of its own. A wrong pattern gives other tokens than the model was
trained on, without any error, so an unknown name is refused.
"""

from dataclasses import dataclass

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Words split where lower case turns into upper case, as in Mistral's Tekken.
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORD = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"


@dataclass(frozen=True)
class Pretokenizer:
    """Patterns in order; whether a word that is itself a token skips its merges; NFC or not."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    compose: bool = False


_GPT_2 = Pretokenizer((_GPT2,))
_DIGITS_THEN_GPT_2 = Pretokenizer((r"\p{N}", _GPT2))
_DEFAULT = Pretokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))
_LLAMA_3 = Pretokenizer((rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_REST}",), ignore_merges=True)
_QWEN_2 = Pretokenizer((rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_REST}",), compose=True)
_TEKKEN = Pretokenizer(
    (rf"{_CASED_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",),
    ignore_merges=True,
)

PRETOKENIZERS: dict[str, Pretokenizer] = {
    "default": _DEFAULT,
    "gpt-2": _GPT_2,
    "olmo": _GPT_2,
    "phi-2": _GPT_2,
    "smollm": _DIGITS_THEN_GPT_2,
    "starcoder": _DIGITS_THEN_GPT_2,
    "refact": _DIGITS_THEN_GPT_2,
    "llama-bpe": _LLAMA_3,
    "llama3": _LLAMA_3,
    "llama-v3": _LLAMA_3,
    "smaug-bpe": _LLAMA_3,
    "qwen2": _QWEN_2,
    "deepseek-r1-qwen": _QWEN_2,
    "tekken": _TEKKEN,
}
