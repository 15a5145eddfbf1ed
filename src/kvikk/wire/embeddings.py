"""Embeddings: texts or tokens in, a vector for each out, in OpenAI's form."""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kvikk.wire.completions import MAX_TOKEN_ID
from kvikk.wire.generation import read_include_ledger, read_priority
from kvikk.wire.reading import JsonValue

MAX_INPUTS = 2048  # the API's own
Pooling = Literal["last", "mean"]


@dataclass(frozen=True)
class EmbeddingInput:
    """One text, or its tokens, and where in the body it stands."""

    prompt: str | tuple[int, ...]
    path: str


@dataclass(frozen=True)
class EmbeddingRequest:
    """The body of ``POST /v1/embeddings``.

    ``pooling`` is kvikk's own: the last token's hidden state, or the mean of all. ``is_base64``
    asks for little-endian float32 in base64, which is what OpenAI's client asks for by itself.
    """

    model: str
    inputs: tuple[EmbeddingInput, ...]
    is_base64: bool = False
    dimensions: int | None = None
    pooling: Pooling = "last"
    cache_salt: str = ""
    priority: int = 0
    include_ledger: bool = False

    @classmethod
    def from_json(cls, body: JsonValue) -> "EmbeddingRequest":
        """Read a body. Raises RequestError, naming the path, for what cannot be understood."""
        dimensions, salt = body.get("dimensions"), body.get("cache_salt")
        return cls(
            body.get("model").string(),
            _inputs(body.get("input")),
            _word(body.get("encoding_format"), "float", "base64") == "base64",
            None if dimensions.is_null else dimensions.integer(1),
            "mean" if _word(body.get("pooling"), "last", "mean") == "mean" else "last",
            "" if salt.is_null else salt.string(),
            read_priority(body.get("priority")),
            read_include_ledger(body.get("kvikk")),
        )


def embeddings_json(
    request_id: str,
    created: int,
    model: str,
    vectors: Iterable[NDArray[np.float32]],
    *,
    is_base64: bool,
    prompt_tokens: int,
    cached_tokens: int,
) -> dict[str, Any]:
    """The answer, with the vectors in the order of their inputs. ``created`` counts from 1970."""
    return {
        "id": request_id,
        "object": "list",
        "created": created,
        "model": model,
        "data": [
            {"object": "embedding", "index": index, "embedding": _encoded(vector, is_base64)}
            for index, vector in enumerate(vectors)
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        },
    }


def _encoded(vector: NDArray[np.float32], is_base64: bool) -> str | list[float]:
    if is_base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers


def _inputs(value: JsonValue) -> tuple[EmbeddingInput, ...]:
    """A text, texts, tokens, or several lists of tokens."""
    if isinstance(value.value, str):
        return (EmbeddingInput(_text(value), value.path),)
    if value.is_null:
        value.fail_type("a string, token ids, or a list of either")
    elements = value.elements()
    if not elements:
        value.fail("is empty; expected a text, token ids, or a list of either")
    if not isinstance(elements[0], str | list):
        return (EmbeddingInput(_tokens(value), value.path),)
    if len(elements) > MAX_INPUTS:
        value.fail(f"has {len(elements)} inputs; at most {MAX_INPUTS} in one request")
    return tuple(
        EmbeddingInput(_tokens(item) if isinstance(elements[0], list) else _text(item), item.path)
        for item in value.items()
    )


def _text(value: JsonValue) -> str:
    text = value.string()
    if not text:
        value.fail("is empty; there is nothing to embed")
    return text


def _tokens(value: JsonValue) -> tuple[int, ...]:
    elements: Sequence[Any] = value.elements()
    if not elements:
        value.fail("is empty; there is nothing to embed")
    if all(type(element) is int and 0 <= element <= MAX_TOKEN_ID for element in elements):
        return tuple(elements)
    # Item by item, to name the one at fault.
    return tuple(item.integer(0, MAX_TOKEN_ID) for item in value.items())


def _word(value: JsonValue, *known: str) -> str:
    """One of the known words, the first for null."""
    if value.is_null:
        return known[0]
    word = value.string()
    if word not in known:
        value.fail(f"must be one of {', '.join(known)}, not {word[:40]!r}")
    return word
