"""Text as it is generated: whole characters only, and stop strings found across token borders."""

import codecs
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from kvikk.text.tokenizer import Tokenizer


class StreamDecoder:
    """Decodes one answer as its tokens arrive.

    A character may be spread over several tokens; it is emitted with the last of them. All that
    ``push`` and ``finish`` return, joined, is what ``Tokenizer.decode`` gives for all the tokens.
    Costs the same for every token, however long the answer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        special: bool = False,
        shown: Container[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._shown = shown  # control tokens whose names belong to the text all the same
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that ``token_ids`` complete; what they leave of a character is kept."""
        spell, special, shown = self._tokenizer.token_bytes, self._special, self._shown
        return self._decoder.decode(
            b"".join(
                [spell(token_id, special=special or token_id in shown) for token_id in token_ids]
            )
        )

    def finish(self) -> str:
        """What is left: nothing, or U+FFFD for a character that never became whole."""
        return self._decoder.decode(b"", final=True)


@dataclass(frozen=True)
class Matched:
    """What a stop matcher lets through, and the stop string that ended the text behind it."""

    text: str
    stop: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether the text has ended."""
        return self.stop is not None


class StopMatcher:
    """Cuts a stream at the first stop string, which is not part of the text.

    Text that may yet turn out to begin a stop string is held back, and nothing else is. The stop
    string that is complete first wins (of two, the longer), so that the cut does not depend on how
    the text came in pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""

    def push(self, text: str) -> Matched:
        """Take the next piece of text. After ``stopped`` there is nothing more to push."""
        if not self._stops:
            return Matched(text)
        seen = self._held + text
        found = [
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := seen.find(stop)) >= 0
        ]
        if found:
            self._held = ""
            _, start, stop = min(found)
            return Matched(seen[:start], stop)
        held_length = max(overlap(seen, stop) for stop in self._stops)
        cut = len(seen) - held_length
        self._held = seen[cut:]
        return Matched(seen[:cut])

    def finish(self) -> str:
        """What was held back, now that no stop string can follow."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """Length of the longest proper start of ``stop`` that ``text`` ends with."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
