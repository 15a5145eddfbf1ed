"""What each token id stands for, in bytes: the half of a tokeniser that turns ids into text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

Spelling = Literal["byte_level", "sentencepiece"]

SPACE_MARK = "\u2581"  # SentencePiece writes a space as this character


class TokenType(IntEnum):
    """What kind of entry a token is; the numbers are GGUF's ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3  # structure, not text: begin and end marks, roles
    USER_DEFINED = 4  # text that is always one token
    UNUSED = 5
    BYTE = 6  # one raw byte, spelled <0x0A>


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's spelling of the 256 bytes as printable characters.

    Printable Latin-1 stands for itself; the other bytes, in order, take the characters from U+0100.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = _byte_level_alphabet()


@dataclass(frozen=True)
class Vocabulary:
    """Every token's spelling and type; a token's id is its index in both."""

    pieces: Sequence[str]
    types: Sequence[int]
    spelling: Spelling
    _bytes: dict[int, bytes] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.pieces)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to a text; a control token's are its name.

        Ids past the vocabulary (an embedding may be padded) stand for nothing and give b"".
        """
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell_out(token_id)
        return known

    def _spell_out(self, token_id: int) -> bytes:
        if not 0 <= token_id < len(self.pieces):
            return b""
        piece, kind = self.pieces[token_id], self.types[token_id]
        if kind == TokenType.BYTE:
            return bytes((int(piece[3:5], 16),))
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN):
            return piece.encode("utf-8", "replace")
        if self.spelling == "sentencepiece":
            return piece.replace(SPACE_MARK, " ").encode("utf-8", "replace")
        if kind == TokenType.USER_DEFINED:
            return piece.encode("utf-8", "replace")
        try:
            return bytes(_BYTE_OF[character] for character in piece)
        except KeyError:  # an entry added by hand, spelled as plain text
            return piece.encode("utf-8", "replace")
