"""How many replicas: by the prompt tokens that wait, not by the number of requests.

A request may wait for ten tokens or for a hundred thousand; what a replica more would take over is
the prefill. Delays, factors and bounds are Serve's own, applied to what is said here.
"""

import math
from typing import Any

WAITING_TOKENS = "kvikk_waiting_tokens"


class WaitingTokens:
    """As many replicas as it takes for each to have ``target_tokens`` waiting."""

    def __init__(self, target_tokens: float) -> None:
        self._target_tokens = target_tokens

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """The number wanted, given Serve's ``AutoscalingContext``; and no state."""
        waiting = sum(context.aggregated_metrics.get(WAITING_TOKENS, {}).values())
        return self.wanted(waiting, context.total_num_requests), {}

    def wanted(self, waiting_tokens: float, num_requests: float) -> int:
        """Replicas for so much waiting work; one at least where anything runs at all."""
        return max(math.ceil(waiting_tokens / self._target_tokens), 1 if num_requests else 0)
