"""Text to token ids and back, the same for every model format.

Encoding is the ``tokenizers`` library's; decoding is ours, a join of each token's bytes, so that a
stream of tokens can be decoded piece by piece and give exactly what decoding them together gives.
"""

from collections.abc import Iterable
from threading import Lock
from typing import TYPE_CHECKING

from kvikk.files.sources import ModelSource
from kvikk.text.vocabulary import TokenType, Vocabulary

if TYPE_CHECKING:
    import tokenizers

# Names under which models end an answer, besides the end-of-sequence token that a file declares.
END_OF_TURN_NAMES = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>"),
    *("<end_of_turn>", "<end_of_utterance>", "<|return|>", "<EOT>"),
)


class Tokenizer:
    """One model's tokeniser. Safe to use from several threads.

    ``vocabulary_size`` counts the tokens that have a spelling. ``eos_token_ids`` are all tokens
    that end an answer: the declared end of sequence and the ends of turns. ``adds_bos`` says
    whether the model wants ``bos_token_id`` in front of a plain prompt (a chat template writes its
    own).
    """

    def __init__(
        self,
        encoder: "tokenizers.Tokenizer",
        vocabulary: Vocabulary,
        *,
        bos_token_id: int | None,
        eos_token_id: int | None,
        adds_bos: bool,
        eos_token_ids: Iterable[int] = (),
    ) -> None:
        self._encoder = encoder
        self._plain_encoder: tokenizers.Tokenizer | None = None
        self._lock = Lock()
        self.vocabulary = vocabulary
        self.vocabulary_size = len(vocabulary)
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        self.adds_bos = adds_bos and bos_token_id is not None
        ends = {self.token_id(name) for name in END_OF_TURN_NAMES} | {eos_token_id, *eos_token_ids}
        self.eos_token_ids: frozenset[int] = frozenset(end for end in ends if end is not None)

    def encode(self, text: str, *, special: bool = True, add_bos: bool | None = None) -> list[int]:
        """Token ids of ``text``.

        With ``special`` the names of control tokens in the text become those tokens, as in a
        rendered chat template; without, they are text like any other. ``add_bos`` None does what
        the model wants. A lone surrogate, which no UTF-8 text can hold, is read as U+FFFD.
        """
        encoder = self._encoder if special else self._encoder_of_plain_text()
        encoding = encoder.encode(_well_formed(text), add_special_tokens=False)
        token_ids: list[int] = encoding.ids
        if self.bos_token_id is not None and (self.adds_bos if add_bos is None else add_bos):
            token_ids.insert(0, self.bos_token_id)
        return token_ids

    def decode(self, token_ids: Iterable[int], *, special: bool = False) -> str:
        """The text of ``token_ids``; bytes that are not UTF-8 become U+FFFD.

        Control tokens show their names with ``special`` and are left out without.
        """
        pieces = (self.token_bytes(token_id, special=special) for token_id in token_ids)
        return b"".join(pieces).decode("utf-8", "replace")

    def token_bytes(self, token_id: int, *, special: bool = False) -> bytes:
        """The bytes one token adds to a text; b"" for a control token unless ``special``."""
        if not special and self.is_control(token_id):
            return b""
        return self.vocabulary.token_bytes(token_id)

    def is_control(self, token_id: int) -> bool:
        """Whether the token is structure and not text."""
        types = self.vocabulary.types
        return 0 <= token_id < len(types) and types[token_id] == TokenType.CONTROL

    def token_id(self, name: str) -> int | None:
        """The id of the control or user-defined token called ``name``, if there is one."""
        token_id: int | None = self._encoder.token_to_id(name)
        if token_id is None or token_id >= self.vocabulary_size:
            return None
        kind = self.vocabulary.types[token_id]
        return token_id if kind in (TokenType.CONTROL, TokenType.USER_DEFINED) else None

    def _encoder_of_plain_text(self) -> "tokenizers.Tokenizer":
        # Shares the model (by far the largest part) and leaves the control tokens' names out.
        from tokenizers import Tokenizer

        with self._lock:
            if self._plain_encoder is None:
                plain = Tokenizer(self._encoder.model)
                if self._encoder.normalizer is not None:
                    plain.normalizer = self._encoder.normalizer
                if self._encoder.pre_tokenizer is not None:
                    plain.pre_tokenizer = self._encoder.pre_tokenizer
                added = self._encoder.get_added_tokens_decoder().values()
                plain.add_tokens([token for token in added if not token.special])
                self._plain_encoder = plain
            return self._plain_encoder


def load_tokenizer(source: ModelSource) -> Tokenizer:
    """The tokeniser that came with a model: in its GGUF file or its folder's ``tokenizer.json``.

    Raises ModelError, naming the file, if there is none or one of a kind that is not supported.
    """
    from kvikk.text.folder_tokenizer import load_folder_tokenizer
    from kvikk.text.gguf_tokenizer import load_gguf_tokenizer

    return (
        load_gguf_tokenizer(source.gguf) if source.is_gguf else load_folder_tokenizer(source.path)
    )


def _well_formed(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
