"""What was believed of a replica against what it said it reused."""

import logging
from collections import deque

logger = logging.getLogger(__name__)

# So many answers in a row that contradict each other's side altogether are no chance.
_ALARM_ANSWERS = 20


class Drift:
    """One replica's predictions and reports, in tokens.

    ``alarm`` is a word while something looks broken: ``never hits`` if what is believed to be there
    is never reused (another block size, caching switched off), ``never predicted`` if it reuses and
    nothing was expected (keys that never match).
    """

    def __init__(self, replica: str) -> None:
        self.answers = 0
        self.prompt_tokens = 0
        self.predicted_tokens = 0
        self.reported_tokens = 0
        self.over_tokens = 0
        self.under_tokens = 0
        self.alarm = ""
        self._replica = replica
        self._recent: deque[tuple[bool, bool]] = deque(maxlen=_ALARM_ANSWERS)

    @property
    def agreement(self) -> float:
        """Share of prompt tokens about which both say the same."""
        wrong = self.over_tokens + self.under_tokens
        return 1 - wrong / self.prompt_tokens if self.prompt_tokens else 1.0

    def note(self, prompt_tokens: int, predicted_tokens: int, reported_tokens: int) -> None:
        """One answer."""
        self.answers += 1
        self.prompt_tokens += prompt_tokens
        self.predicted_tokens += predicted_tokens
        self.reported_tokens += reported_tokens
        self.over_tokens += max(predicted_tokens - reported_tokens, 0)
        self.under_tokens += max(reported_tokens - predicted_tokens, 0)
        if predicted_tokens or reported_tokens:
            self._recent.append((predicted_tokens > 0, reported_tokens > 0))
        self._watch()

    def _watch(self) -> None:
        alarm = ""
        if len(self._recent) == _ALARM_ANSWERS:
            if all(predicted and not reported for predicted, reported in self._recent):
                alarm = "never hits"
            elif all(reported and not predicted for predicted, reported in self._recent):
                alarm = "never predicted"
        if alarm and alarm != self.alarm:
            logger.warning(
                "%s: %s in the last %d answers that could have: what the router believes of its "
                "cache has nothing to do with it",
                self._replica,
                alarm,
                _ALARM_ANSWERS,
            )
        self.alarm = alarm
