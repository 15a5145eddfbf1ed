"""What the placement keeps of one replica."""

import asyncio
import math
from collections.abc import Callable

from kvikk.router.holdings.drift import Drift
from kvikk.router.holdings.index import PrefixIndex
from kvikk.router.holdings.learned import Learned, Promised
from kvikk.router.holdings.subscription import Subscription
from kvikk.router.holdings.told import Told
from kvikk.router.holdings.tree import PrefixTree
from kvikk.router.placement.options import EventSource
from kvikk.router.placement.prompts import told_root
from kvikk.router.records import ReplicaView
from kvikk.wire.kv_events import KvBatch, KvCleared

# Of each answer's speed so much goes into the mean, by tokens.
_SPEED_TOKENS = 20_000.0


class Holder:
    """One replica: what it holds by its word or our memory, how fast it is, whether that fits.

    ``tree`` has what all replicas are believed to hold, ``index`` what they say themselves.
    ``on_new_names`` is called when it tells of a block size or an adapter for the first time.
    """

    def __init__(
        self,
        view: ReplicaView,
        url: str,
        tree: PrefixTree,
        index: PrefixIndex,
        source: EventSource | None,
        blocks: int,
        on_new_names: Callable[[], None],
    ) -> None:
        self.view = view
        self.url = url
        self.drift = Drift(view.id)
        self.learned = Learned(view.slot, tree, blocks)
        self.told: Told | None = None
        self.promised: Promised | None = None
        self.subscription: Subscription | None = None
        self.task: asyncio.Task[None] | None = None
        self._speed_tokens = self._speed_s = 0.0
        self._on_new_names = on_new_names
        if source is not None:
            self.told = Told(view.slot, index, told_root)
            self.promised = Promised(view.slot, index)
            self.subscription = Subscription(
                source.endpoint, source.replay, hear=self.hear, forget=self.clear
            )

    @property
    def tells(self) -> bool:
        """Whether it has said what it holds."""
        return self.told is not None and self.told.is_known

    def hear(self, batch: KvBatch) -> None:
        """It told what its cache gained and lost."""
        assert self.told is not None
        told, knew = self.told, self.told.is_known
        names = len(told.block_sizes), len(told.adapters)
        told.hear(batch)
        if names != (len(told.block_sizes), len(told.adapters)):
            self._on_new_names()
        # From its first word on it is believed, and not what was guessed before.
        if not knew or any(isinstance(event, KvCleared) for event in batch.events):
            self.learned.clear()

    def clear(self) -> None:
        """It holds nothing any more, as far as is known."""
        self.learned.clear()
        if self.told is not None and self.promised is not None:
            self.told.clear()
            self.promised.clear()

    def measured(self, tokens: float, seconds: float) -> None:
        """So many prompt tokens, those ahead included, took so long to be computed."""
        if tokens < 1 or seconds <= 0:
            return
        keep = math.exp(-tokens / _SPEED_TOKENS)
        self._speed_tokens = self._speed_tokens * keep + tokens
        self._speed_s = self._speed_s * keep + seconds
        self.view.prefill_tokens_per_s = self._speed_tokens / self._speed_s
