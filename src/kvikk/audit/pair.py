"""A request beside the earlier one that it should have shared with."""

from dataclasses import dataclass

from kvikk.audit.content import Content
from kvikk.audit.difference import Divergence
from kvikk.audit.exchange import Exchange
from kvikk.audit.prompt import Prompt
from kvikk.audit.provider import Rules
from kvikk.audit.window import Earlier
from kvikk.pricing.caching import Steps
from kvikk.pricing.decision import Decision


@dataclass(frozen=True)
class Pair:
    """A request beside the earlier one that it should have shared with.

    ``shared`` tokens are their common beginning, ``hit`` of them were read (reported, or else by
    the rules). ``parameters`` are the later one's. ``key_rate`` requests a minute had its key;
    ``seen_before`` earlier requests had the same beginning.
    ``other_arm`` says that the very same prompt went to another model, or under another key or
    parameter, after ``earlier``.
    """

    earlier: Earlier
    exchange: Exchange
    prompt: Prompt
    parameters: dict[str, object]
    place: Divergence
    shared: int
    hit: int
    rules: Rules
    decision: Decision
    content: Content | None
    key_rate: int = 0
    seen_before: int = 1
    other_arm: bool = False

    @property
    def reported(self) -> bool:
        """Whether the provider says what was read."""
        return self.exchange.usage.read_tokens is not None

    @property
    def slack(self) -> int:
        """So many tokens may be missing without a reason: estimates, steps, ends of pieces."""
        scheme = self.rules.caching.scheme
        step = scheme.step_tokens if isinstance(scheme, Steps) else 0
        step = step if self.shared >= step else 0  # nothing is cut off by a step that is not there
        return max(64, step, self.shared * 3 // 100)
