"""How many conversations a device holds, how long they may be, and what a token then costs.

All from one function of the context: what a conversation of so many tokens takes. It may be the
logical cost or what an engine reserves; it never falls as the context grows.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kvikk.errors import ModelError
from kvikk.shapes.quantities import format_bytes

BytesAt = Callable[[int], int]


@dataclass(frozen=True)
class Device:
    """One device's memory: what the weights and the ``reserve`` leave is the cache's."""

    memory_bytes: int
    weight_bytes: int
    reserve_bytes: int = 0

    @property
    def cache_bytes(self) -> int:
        """What is left for the cache. Raises ModelError if nothing is."""
        left = self.memory_bytes - self.weight_bytes - self.reserve_bytes
        if left <= 0:
            raise ModelError(
                f"{format_bytes(self.memory_bytes)} of memory hold no cache: the weights take "
                f"{format_bytes(self.weight_bytes)}"
                + f" and {format_bytes(self.reserve_bytes)} are reserved" * (self.reserve_bytes > 0)
                + "; give more --memory, or spread the weights with --tp"
            )
        return left


def conversations(cache_bytes: int, bytes_at: BytesAt, context_tokens: int) -> int:
    """How many conversations of ``context_tokens`` fit at once.

    Raises ModelError for a model that keeps nothing, of which any number fits.
    """
    each = bytes_at(context_tokens)
    if each <= 0:
        raise ModelError("the model keeps nothing for a conversation: any number of them fits")
    return cache_bytes // each


def longest_context(
    cache_bytes: int, bytes_at: BytesAt, num_conversations: int, most_tokens: int
) -> int:
    """The longest context, at most ``most_tokens``, at which ``num_conversations`` fit; else 0."""
    low, high = 0, most_tokens
    while low < high:
        middle = (low + high + 1) // 2
        if num_conversations * bytes_at(middle) <= cache_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def context_beyond_weights(
    weight_bytes: int, bytes_at: BytesAt, num_conversations: int, most_tokens: int
) -> int | None:
    """The shortest context at which so many conversations' cache outgrows the weights.

    None where it does not up to ``most_tokens``.
    """
    if num_conversations * bytes_at(most_tokens) <= weight_bytes:
        return None
    return longest_context(weight_bytes, bytes_at, num_conversations, most_tokens) + 1


@dataclass(frozen=True)
class DecodeFloor:
    """The least that a step of decoding takes: every weight and all of the cache are read once.

    ``step_s`` is for one token of each of ``num_conversations``. No arithmetic, no network, no
    prefill: nothing is faster.
    """

    num_conversations: int
    step_s: float

    @property
    def tokens_per_s(self) -> float:
        """Of all conversations together."""
        return self.num_conversations / self.step_s

    def cost_per_million_tokens(self, price_per_hour: float) -> float:
        """In the currency of ``price_per_hour``, which is for everything that serves."""
        return price_per_hour / 3600 / self.tokens_per_s * 1e6


def decode_floor(
    weight_bytes: int,
    conversation_bytes: int,
    num_conversations: int,
    bandwidth_bytes_per_s: float,
) -> DecodeFloor:
    """The floor for ``num_conversations`` at once, each with a cache of ``conversation_bytes``."""
    read_bytes = weight_bytes + num_conversations * conversation_bytes
    return DecodeFloor(num_conversations, read_bytes / bandwidth_bytes_per_s)
