"""One answer's text as its tokens come: whole characters, cut at the first stop string."""

from kvikk.text.stream import Matched, StopMatcher, StreamDecoder
from kvikk.text.tokenizer import Tokenizer


class AnswerText:
    """Decodes and matches in one go. Belongs to one request and outlives its preemptions."""

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
        self._decoder = StreamDecoder(tokenizer)
        self._matcher = StopMatcher(stop)

    def push(self, token_id: int) -> Matched:
        """The text that may be shown after this token, and whether a stop string ended it."""
        return self._matcher.push(self._decoder.push((token_id,)))

    def finish(self) -> str:
        """All that was held back, now that nothing more can come."""
        matched = self._matcher.push(self._decoder.finish())
        return matched.text if matched.stopped else matched.text + self._matcher.finish()
