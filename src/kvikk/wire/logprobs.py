"""How likely tokens were, as Chat Completions, Completions and vLLM write it down."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token in its place: its bytes, and the natural logarithm of its probability."""

    token_id: int
    spelling: bytes
    logprob: float

    @property
    def text(self) -> str:
        """The token as text; bytes that are no text by themselves are named one by one."""
        try:
            return self.spelling.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.spelling)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The token that came, its rank, and the likeliest in its place, likeliest first.

    ``own`` alone, with None for a logarithm, is the first token of a prompt: nothing foretells it.
    """

    own: Candidate
    rank: int = 0
    top: tuple[Candidate, ...] = ()
    is_first: bool = False


def chat_logprobs(tokens: Iterable[TokenLogprobs]) -> dict[str, Any]:
    """The ``logprobs`` of a choice of Chat Completions."""
    return {
        "content": [
            _chat_token(token.own) | {"top_logprobs": [_chat_token(one) for one in token.top]}
            for token in tokens
        ],
        "refusal": None,
    }


def completion_logprobs(tokens: Sequence[TokenLogprobs], offset: int = 0) -> dict[str, Any]:
    """The ``logprobs`` of a choice of Completions; the first token is at character ``offset``."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.own.text)
    return {
        "text_offset": offsets,
        "tokens": [token.own.text for token in tokens],
        "token_logprobs": [None if token.is_first else token.own.logprob for token in tokens],
        "top_logprobs": [
            None if token.is_first else {one.text: one.logprob for one in (*token.top, token.own)}
            for token in tokens
        ],
    }


def prompt_logprobs(tokens: Iterable[TokenLogprobs]) -> list[dict[str, Any] | None]:
    """vLLM's ``prompt_logprobs``: for each token of the prompt the likeliest and itself, by id."""
    return [
        None
        if token.is_first
        else {
            str(one.token_id): {"logprob": one.logprob, "rank": rank, "decoded_token": one.text}
            for rank, one in [*enumerate(token.top, 1), (token.rank, token.own)]
        }
        for token in tokens
    ]


def _chat_token(one: Candidate) -> dict[str, Any]:
    return {"token": one.text, "logprob": one.logprob, "bytes": list(one.spelling)}
