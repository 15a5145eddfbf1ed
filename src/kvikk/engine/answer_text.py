"""One answer's text as its tokens come: whole characters, cut at the first stop string."""

from collections.abc import Sequence

from kvikk.engine.requests import Generation
from kvikk.text.stream import StopMatcher, StreamDecoder
from kvikk.text.tokenizer import Tokenizer


class AnswerText:
    """Decodes and matches in one go. Belongs to one request and outlives its preemptions.

    A stop string stops nothing that begins in the least number of tokens.
    """

    def __init__(self, tokenizer: Tokenizer, generation: Generation) -> None:
        stop = generation.stop
        self._decoder = StreamDecoder(tokenizer, shown=generation.shown_token_ids)
        self._matcher = StopMatcher(stop) if stop else None
        self._unmatched_tokens = generation.min_tokens
        self.stop_string: str | None = None  # the one that ended the answer

    def push(self, token_ids: Sequence[int]) -> tuple[str, int | None]:
        """The text that may be shown after these tokens; how many there were at a stop string."""
        if self._matcher is None:
            return self._decoder.push(token_ids), None
        text = ""
        for count, token_id in enumerate(token_ids, 1):
            if self._unmatched_tokens:
                self._unmatched_tokens -= 1
                text += self._decoder.push((token_id,))
                continue
            matched = self._matcher.push(self._decoder.push((token_id,)))
            text += matched.text
            if matched.stopped:
                self.stop_string = matched.stop
                return text, count
        return text, None

    def finish(self) -> str:
        """All that was held back, now that nothing more can come; nothing from a stop string on."""
        if self.stop_string is not None:
            return ""
        rest = self._decoder.finish()
        if self._matcher is None:
            return rest
        matched = self._matcher.push(rest)
        self.stop_string = matched.stop
        return matched.text if matched.stopped else matched.text + self._matcher.finish()
