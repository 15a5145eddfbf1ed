"""Grammars that an answer must keep to: JSON schemas, regular expressions, choices, and more.

llguidance compiles them against a model's vocabulary; what is made here is shared, and each answer
has a state of its own.
"""

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvikk.errors import RequestError
from kvikk.text.tokenizer import Tokenizer
from kvikk.wire.grammars import GrammarKind, GrammarSpec

if TYPE_CHECKING:
    import llguidance

_KEPT_GRAMMARS = 64
_MAX_REASON_CHARACTERS = 400


class GrammarState:
    """How far one answer has come in its grammar.

    ``allowed`` says which tokens may come next: bit t % 32 of word t // 32 is token t.
    """

    def __init__(self, grammar: "Grammar", matcher: "llguidance.LLMatcher") -> None:
        self._grammar = grammar
        self._matcher = matcher

    @property
    def refusal(self) -> RequestError | None:
        """What to say where the grammar has become too large to follow; None while it is well."""
        if not self._matcher.is_error():
            return None
        parameter = self._grammar.parameter
        return RequestError(
            f"{parameter}: the grammar has grown too large to follow in the middle of the answer; "
            "ask for fewer or shorter repetitions",
            parameter,
        )

    def advance(self, token_ids: Sequence[int]) -> None:
        """Tokens that were chosen, each of them allowed."""
        if token_ids:
            self._matcher.consume_tokens(list(token_ids))

    def allowed(self, guesses: Sequence[int] = ()) -> NDArray[np.uint32]:
        """The tokens that may come after ``guesses``, which are forgotten again.

        After guesses that are not allowed themselves it does not matter: no row of logits that
        stands on them is used. None is allowed once the grammar has become too large to follow.
        """
        taken = self._matcher.try_consume_tokens(list(guesses)) if guesses else 0
        words = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
        if self._matcher.is_error():
            words = np.zeros_like(words)
            self._grammar.is_spent = True
        if taken:
            self._matcher.rollback(taken)
        return words


class Grammar:
    """A compiled grammar. Safe to start from several threads.

    Its answers share what is built of it on the way. Where that grows too large for one of them it
    ``is_spent``: none can follow it any more. ``parameter`` is the field it came in.
    """

    def __init__(self, matcher: "llguidance.LLMatcher", parameter: str) -> None:
        self._matcher = matcher
        self.parameter = parameter
        self.is_spent = False

    def start(self) -> GrammarState:
        """The state before the first token."""
        return GrammarState(self, self._matcher.deep_copy())


class GrammarCompiler:
    """Compiles grammars for one model's tokens, and keeps the latest. Safe to share."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocabulary: llguidance.LLTokenizer | None = None
        self._lock = Lock()
        self._compiled = lru_cache(_KEPT_GRAMMARS)(self._compile)

    def compile(self, spec: GrammarSpec) -> Grammar:
        """The grammar; RequestError, naming the field, for one that cannot be read or kept to.

        May take tens of milliseconds, and the first one of a server longer.
        """
        grammar = self._compiled(spec)
        if grammar.is_spent:
            self._compiled.cache_clear()  # it cannot forget one alone
            grammar = self._compiled(spec)
        return grammar

    def _compile(self, spec: GrammarSpec) -> Grammar:
        try:
            from llguidance import LLMatcher, grammar_from
        except ImportError:
            raise RequestError(
                f"{spec.parameter}: needs the package llguidance; "
                "install it with 'pip install kvikk[engine]'",
                spec.parameter,
            ) from None
        if not _ends(self._tokenizer):
            raise _unusable(spec, "the model has no token that ends an answer")
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = _vocabulary(self._tokenizer)
        try:
            described = grammar_from(*_described(spec))
        except ValueError as error:
            raise _unusable(spec, str(error)) from None
        matcher = LLMatcher(self._vocabulary, described, log_level=0)
        if matcher.is_error():
            raise _unusable(spec, matcher.get_error())
        grammar = Grammar(matcher, spec.parameter)
        # Seen when it is followed, not when it is read. The first answer may build all that there
        # is room for, so that there is none for the second.
        if not all(grammar.start().allowed().any() for _ in range(2)):
            raise _unusable(spec, "no answer keeps to it, or it is too large to follow")
        return grammar


def _described(spec: GrammarSpec) -> tuple[GrammarKind, str]:
    """A grammar's kind and text, as llguidance takes them."""
    if spec.kind == "json_schema":
        return spec.kind, json.dumps(styled(json.loads(spec.text)))
    if spec.kind == "choice":  # as such it could follow 2,000 at most
        return "regex", "|".join(map(re.escape, json.loads(spec.text)))
    return spec.kind, spec.text


def styled(schema: Any) -> Any:
    """A JSON schema, and how its values are written down: as most of what models have read is.

    White space as a model likes is what small ones never find an end of.
    """
    if not isinstance(schema, dict):
        return schema
    style = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return {"x-guidance": style, **schema}


def _unusable(spec: GrammarSpec, reason: str) -> RequestError:
    told = " ".join(reason.split())[:_MAX_REASON_CHARACTERS]
    return RequestError(f"{spec.parameter}: cannot be used: {told}", spec.parameter)


def _vocabulary(tokenizer: Tokenizer) -> "llguidance.LLTokenizer":
    """A model's tokens as llguidance knows them: their bytes, and which of them are structure."""
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Vocabulary(tokenizer)), eos_token=_ends(tokenizer))


def _ends(tokenizer: Tokenizer) -> list[int]:
    """The tokens that end an answer, the declared one first."""
    declared = tokenizer.eos_token_id
    first = [] if declared is None else [declared]
    return first + sorted(tokenizer.eos_token_ids - set(first))


class _Vocabulary:
    """What llguidance's wrapper asks of a tokeniser."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        ids = range(tokenizer.vocabulary_size)
        self.eos_token_id = _ends(tokenizer)[0]
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = [tokenizer.token_bytes(token_id, special=True) for token_id in ids]
        self.special_token_ids = [token_id for token_id in ids if tokenizer.is_control(token_id)]

    def __call__(self, text: bytes | str) -> list[int]:
        """Tokens of a text."""
        plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._tokenizer.encode(plain, special=False, add_bos=False)
