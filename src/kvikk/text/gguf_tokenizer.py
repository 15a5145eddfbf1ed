"""The tokeniser inside a GGUF file: byte-level BPE ("gpt2") and SentencePiece BPE ("llama")."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from kvikk.errors import ModelError
from kvikk.files.gguf import GGUFFile, StringArray
from kvikk.text.merges import sentencepiece_merges
from kvikk.text.pretokenizers import PRETOKENIZERS
from kvikk.text.tokenizer import Tokenizer
from kvikk.text.vocabulary import SPACE_MARK, TokenType, Vocabulary

if TYPE_CHECKING:
    import tokenizers

_T = TypeVar("_T")

# Where a file does not say: what these vocabularies have always meant.
_ADDS_BOS_UNLESS_SAID = {"llama": True, "gpt2": False}
_PRETOKENIZERS_WITH_BOS = ("llama-bpe", "llama3", "llama-v3", "tekken")


def load_gguf_tokenizer(file: GGUFFile) -> Tokenizer:
    """Build the tokeniser that ``file``'s metadata describes.

    Raises ModelError if the file has none, or one of a kind that is not supported.
    """
    kind = _optional(file, "model", str)
    if kind is None:
        raise ModelError(f"{file.path}: the file has no tokeniser (no tokenizer.ggml.model)")
    pieces = _strings(file, "tokens")
    types = _types(file, len(pieces))
    pre = _optional(file, "pre", str) or "default"
    adds_bos = _ADDS_BOS_UNLESS_SAID.get(kind, False)
    if kind == "gpt2":
        encoder = _byte_level_encoder(file, pieces, pre)
        adds_bos = pre in _PRETOKENIZERS_WITH_BOS
    elif kind == "llama":
        encoder = _sentencepiece_encoder(file, pieces, types)
    else:
        raise ModelError(f"{file.path}: tokeniser {kind!r} is not supported; known: gpt2, llama")
    _add_tokens(encoder, pieces, types)
    declared_bos = _optional(file, "add_bos_token", bool)
    ends = (_token_id(file, name, len(pieces)) for name in ("eot_token_id", "eom_token_id"))
    return Tokenizer(
        encoder,
        Vocabulary(pieces, types, "byte_level" if kind == "gpt2" else "sentencepiece"),
        bos_token_id=_token_id(file, "bos_token_id", len(pieces)),
        eos_token_id=_token_id(file, "eos_token_id", len(pieces)),
        adds_bos=adds_bos if declared_bos is None else declared_bos,
        eos_token_ids=[end for end in ends if end is not None],
    )


def _byte_level_encoder(file: GGUFFile, pieces: Sequence[str], pre: str) -> "tokenizers.Tokenizer":
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    pretokenizer = PRETOKENIZERS.get(pre)
    if pretokenizer is None:
        known = ", ".join(PRETOKENIZERS)
        raise ModelError(
            f"{file.path}: pre-tokeniser {pre!r} is not supported; its tokens would be wrong "
            f"without any other sign; known: {known}"
        )
    # A merge is "left right"; a left part may itself begin with a space, never contain one later.
    merges = []
    for merge in _strings(file, "merges"):
        space = merge.find(" ", 1)
        merges.append((merge[:space], merge[space + 1 :]))
    try:
        model = models.BPE(
            vocab={piece: token_id for token_id, piece in enumerate(pieces)},
            merges=merges,
            ignore_merges=pretokenizer.ignore_merges,
        )
    except Exception as error:  # the library raises plain Exception
        raise ModelError(f"{file.path}: its merges do not fit its tokens: {error}") from None
    encoder = Tokenizer(model)
    if pretokenizer.compose:
        encoder.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(text), "isolated") for text in pretokenizer.patterns]
    spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoder.pre_tokenizer = pre_tokenizers.Sequence([*splits, spelling])
    return encoder


def _sentencepiece_encoder(
    file: GGUFFile, pieces: Sequence[str], types: Sequence[int]
) -> "tokenizers.Tokenizer":
    from tokenizers import Tokenizer, models, normalizers

    scores = file.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, np.ndarray) or len(scores) != len(pieces):
        raise ModelError(f"{file.path}: tokenizer.ggml.scores must have one number a token")
    unknown = _token_id(file, "unknown_token_id", len(pieces))
    model = models.BPE(
        vocab={piece: token_id for token_id, piece in enumerate(pieces)},
        merges=sentencepiece_merges(pieces, types, scores.astype(np.float32)),
        byte_fallback=TokenType.BYTE in types,
        fuse_unk=True,
        unk_token=None if unknown is None else pieces[unknown],
    )
    encoder = Tokenizer(model)
    encoder.normalizer = normalizers.Replace(" ", SPACE_MARK)
    if _optional(file, "add_space_prefix", bool) is not False:
        encoder.normalizer = normalizers.Sequence(
            [normalizers.Prepend(SPACE_MARK), encoder.normalizer]
        )
    return encoder


def _add_tokens(
    encoder: "tokenizers.Tokenizer", pieces: Sequence[str], types: Sequence[int]
) -> None:
    # Control and user-defined tokens are found in the raw text before anything else looks at it.
    from tokenizers import AddedToken

    kinds = (TokenType.CONTROL, TokenType.USER_DEFINED)
    encoder.add_tokens(
        [
            AddedToken(piece, special=kind == TokenType.CONTROL, normalized=False)
            for piece, kind in zip(pieces, types, strict=True)
            if kind in kinds and piece
        ]
    )


def _strings(file: GGUFFile, name: str) -> list[str]:
    value = file.metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, StringArray):
        raise ModelError(f"{file.path}: tokenizer.ggml.{name} is missing or not a list of strings")
    return list(value)


def _types(file: GGUFFile, length: int) -> list[int]:
    value = file.metadata.get("tokenizer.ggml.token_type")
    if value is None:
        return [TokenType.NORMAL] * length
    if not isinstance(value, np.ndarray) or len(value) != length:
        raise ModelError(f"{file.path}: tokenizer.ggml.token_type must have one number a token")
    types: list[int] = value.tolist()
    return types


def _optional(file: GGUFFile, name: str, kind: type[_T]) -> _T | None:
    value = file.metadata.get(f"tokenizer.ggml.{name}")
    if value is None or isinstance(value, kind):
        return value
    raise ModelError(f"{file.path}: tokenizer.ggml.{name} is {value!r}, not a {kind.__name__}")


def _token_id(file: GGUFFile, name: str, length: int) -> int | None:
    token_id = _optional(file, name, int)
    if token_id is not None and not 0 <= token_id < length:
        raise ModelError(f"{file.path}: tokenizer.ggml.{name} {token_id} is not one of {length}")
    return token_id
