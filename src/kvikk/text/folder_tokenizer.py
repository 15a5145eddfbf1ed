"""The tokeniser of a model folder: ``tokenizer.json``, and the marks its neighbours declare."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvikk.errors import ModelError
from kvikk.files.json_object import read_json_object
from kvikk.text.tokenizer import Tokenizer
from kvikk.text.vocabulary import Spelling, TokenType, Vocabulary

if TYPE_CHECKING:
    import tokenizers

_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")


def load_folder_tokenizer(folder: Path) -> Tokenizer:
    """Build the tokeniser of ``folder``.

    Raises ModelError if ``tokenizer.json`` is missing, unreadable or decodes in an unknown way.
    """
    from tokenizers import Tokenizer as Encoder

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{folder}: no tokenizer.json in this folder")
    try:
        encoder = Encoder.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ModelError(f"{path}: not a readable tokeniser: {error}") from None
    # What a file says about training batches is no business of a prompt.
    encoder.no_truncation()
    encoder.no_padding()
    vocabulary = _vocabulary(encoder, _spelling(path, read_json(path)))
    config = read_json(folder / "tokenizer_config.json")
    prefix = _tokens_put_in_front(encoder)
    if len(prefix) > 1:
        raise ModelError(f"{path}: puts {len(prefix)} tokens in front of a text; one is supported")
    bos = _named(encoder, config.get("bos_token"))
    ends = [
        end
        for name in ("generation_config.json", "config.json")
        for end in _listed(read_json(folder / name).get("eos_token_id"))
    ]
    return Tokenizer(
        encoder,
        vocabulary,
        bos_token_id=prefix[0] if prefix else bos,
        eos_token_id=_named(encoder, config.get("eos_token")),
        adds_bos=bool(prefix),
        eos_token_ids=ends,
    )


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``, empty where there is no such file; a ModelError if it is not."""
    return read_json_object(path) if path.exists() else {}


def _spelling(path: Path, content: dict[str, Any]) -> Spelling:
    """How token text spells bytes, read from the decoder that would undo it."""
    decoder = content.get("decoder") or {}
    kinds = {part.get("type") for part in [decoder, *decoder.get("decoders", [])]}
    if "ByteLevel" in kinds:
        return "byte_level"
    if kinds & {"ByteFallback", "Metaspace"}:
        return "sentencepiece"
    raise ModelError(f"{path}: decoder {decoder.get('type')!r} is not supported")


def _vocabulary(encoder: "tokenizers.Tokenizer", spelling: Spelling) -> Vocabulary:
    token_ids: dict[str, int] = encoder.get_vocab(with_added_tokens=True)
    size = max(token_ids.values(), default=-1) + 1
    pieces, types = [""] * size, [int(TokenType.UNUSED)] * size
    for piece, token_id in token_ids.items():
        is_byte = spelling == "sentencepiece" and _BYTE_PIECE.fullmatch(piece)
        pieces[token_id] = piece
        types[token_id] = TokenType.BYTE if is_byte else TokenType.NORMAL
    for token_id, token in encoder.get_added_tokens_decoder().items():
        types[token_id] = TokenType.CONTROL if token.special else TokenType.USER_DEFINED
    return Vocabulary(pieces, types, spelling)


def _tokens_put_in_front(encoder: "tokenizers.Tokenizer") -> list[int]:
    bare: list[int] = encoder.encode("a", add_special_tokens=False).ids
    whole: list[int] = encoder.encode("a", add_special_tokens=True).ids
    return whole[: len(whole) - len(bare)] if whole[len(whole) - len(bare) :] == bare else []


def _named(encoder: "tokenizers.Tokenizer", token: object) -> int | None:
    """The id of a token given as its text, or as a record with ``content``."""
    text = token.get("content") if isinstance(token, dict) else token
    return encoder.token_to_id(text) if isinstance(text, str) else None


def _listed(value: object) -> Iterator[int]:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, int):
            yield item
