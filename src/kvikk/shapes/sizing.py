"""A model sized: from its configuration and a few choices to every figure that is printed."""

from dataclasses import dataclass, field, replace
from functools import cached_property

from kvikk.errors import ModelError
from kvikk.shapes.capacity import (
    DecodeFloor,
    Device,
    context_beyond_weights,
    conversations,
    decode_floor,
    longest_context,
)
from kvikk.shapes.cost import CacheCost, cache_cost, rank_cost
from kvikk.shapes.dtypes import PACKED_LATENTS, KvDtypes, kv_dtypes
from kvikk.shapes.formula import Term, terms
from kvikk.shapes.reserve.engines import ENGINES, EngineOptions, reserve
from kvikk.shapes.reserve.records import Reserved
from kvikk.shapes.shape import ModelShape

# A context that nobody asks for in earnest; beyond it a number is a slip of the hand.
MOST_TOKENS = 2**40
MOST_RANKS = 2**16


@dataclass(frozen=True)
class Choices:
    """What is asked for. ``context_tokens`` None is the model's own; ``dtypes`` None too.

    ``memory_bytes`` and ``bandwidth_bytes_per_s`` are one device's, of ``options.tp``;
    ``weight_bytes`` are the whole model's. Raises ModelError for values without sense.
    """

    context_tokens: int | None = None
    dtypes: KvDtypes | None = None
    engine: str = "logical"
    options: EngineOptions = field(default_factory=EngineOptions)
    memory_bytes: int | None = None
    reserve_bytes: int = 0
    num_conversations: int | None = None
    bandwidth_bytes_per_s: float | None = None
    price_per_hour: float | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ModelError(f"no engine {self.engine!r}; known: {', '.join(ENGINES)}")
        counts = {
            "context": (self.context_tokens, MOST_TOKENS),
            "number of conversations": (self.num_conversations, MOST_TOKENS),
            "tensor parallelism": (self.options.tp, MOST_RANKS),
            "slots": (self.options.slots, MOST_RANKS),
            "block size": (self.options.block_size, MOST_RANKS),
            "tokens of a step": (self.options.step_tokens, MOST_TOKENS),
        }
        for name, (value, most) in counts.items():
            if value is not None and not 1 <= value <= most:
                raise ModelError(f"{name} {value}: from 1 to {most:,} is possible")


@dataclass(frozen=True)
class AtContext:
    """The figures at one context. Those for which something is not known are None."""

    context_tokens: int
    logical_bytes: int
    reserved_bytes: int
    conversations: int | None
    floor: DecodeFloor | None


@dataclass(frozen=True)
class Sizing:
    """One model's figures under some choices. ``weight_bytes`` None is unknown.

    What is logical is the sum over the whole model; what is reserved is on one device of ``tp``.
    """

    name: str
    shape: ModelShape
    choices: Choices
    weight_bytes: int | None = None

    @cached_property
    def dtypes(self) -> KvDtypes:
        """The types of keys and values: those chosen, else the model's own."""
        chosen = self.choices.dtypes
        if chosen is None or (chosen.key.name == "fp8" and self.shape.kv_dtype == PACKED_LATENTS):
            return kv_dtypes(self.shape.kv_dtype)  # packed is the only fp8 such a model has
        return chosen

    @cached_property
    def cost(self) -> CacheCost:
        """The logical cost of a conversation."""
        return cache_cost(self.shape, self.choices.dtypes)

    @cached_property
    def rank_cost(self) -> CacheCost:
        """The logical cost of a conversation on one device."""
        options = self.choices.options
        return rank_cost(
            self.shape, self.choices.dtypes, tp=options.tp, dp_attention=options.dp_attention
        )

    @property
    def terms(self) -> tuple[Term, ...]:
        """The formula in words."""
        return terms(self.shape, self.dtypes)

    @property
    def context_tokens(self) -> int:
        """The context asked for, else the model's own."""
        return self.choices.context_tokens or self.shape.context_tokens

    @property
    def flat_from_tokens(self) -> int | None:
        """Where the last window has stopped growing; None for a model without windows."""
        windows = [part.window_tokens for part, _ in self.cost.parts if part.window_tokens]
        return max(windows, default=None)

    def reserved(self, context_tokens: int) -> Reserved:
        """What the chosen engine sets aside on one device."""
        choices = self.choices
        return reserve(choices.engine, self.shape, choices.dtypes, context_tokens, choices.options)

    @cached_property
    def device(self) -> Device | None:
        """One device, if its memory and the weights are known."""
        if self.choices.memory_bytes is None or self.weight_bytes is None:
            return None
        return Device(self.choices.memory_bytes, self.rank_weight_bytes, self.choices.reserve_bytes)

    @property
    def rank_weight_bytes(self) -> int:
        """The weights' part on one device."""
        assert self.weight_bytes is not None
        return -(-self.weight_bytes // self.choices.options.tp)

    @property
    def replicas(self) -> int:
        """How many times the devices hold different conversations: with data-parallel attention."""
        options = self.choices.options
        return options.tp if options.dp_attention else 1

    def conversations(self, context_tokens: int) -> int | None:
        """How many conversations of that length fit, on all devices together."""
        if self.device is None:
            return None
        if self.choices.engine == "llamacpp":
            return self._slots(self.device.cache_bytes, context_tokens)
        return self.replicas * conversations(
            self.device.cache_bytes, self._conversation_bytes, context_tokens
        )

    def _conversation_bytes(self, context_tokens: int) -> int:
        return self.reserved(context_tokens).total_bytes

    def _slots(self, cache_bytes: int, context_tokens: int) -> int:
        """How many of llama.cpp's slots fit, each with a context of its own."""

        def slots_bytes(slots: int) -> int:
            options = replace(self.choices.options, slots=max(slots, 1))
            context = context_tokens * max(slots, 1)
            return reserve(
                "llamacpp", self.shape, self.choices.dtypes, context, options
            ).total_bytes * (slots > 0)

        most = 1
        while slots_bytes(most) <= cache_bytes and most < MOST_TOKENS:
            most *= 2
        return longest_context(cache_bytes, slots_bytes, 1, most)

    def longest_context(self, num_conversations: int) -> int | None:
        """The longest context at which so many conversations fit; at most the model's own."""
        if self.device is None:
            return None
        each_device = -(-num_conversations // self.replicas)
        return longest_context(
            self.device.cache_bytes,
            self._conversation_bytes,
            each_device,
            max(self.shape.context_tokens, self.context_tokens),
        )

    def context_beyond_weights(self, num_conversations: int) -> int | None:
        """The context from which so many conversations' cache is larger than the weights."""
        if self.weight_bytes is None:
            return None
        return context_beyond_weights(
            self.weight_bytes,
            self.cost.bytes_at,
            num_conversations,
            max(self.shape.context_tokens, self.context_tokens),
        )

    @property
    def tokens_beyond_weights(self) -> int | None:
        """How many tokens, in all conversations, weigh more than the weights.

        None where a token does not always cost the same, and where the weights are not known.
        """
        plain = self.flat_from_tokens is None and not self.cost.fixed_bytes
        if self.weight_bytes is None or not plain or not self.cost.bytes_per_token:
            return None
        return int(self.weight_bytes / self.cost.bytes_per_token) + 1

    def floor(self, context_tokens: int, num_conversations: int) -> DecodeFloor | None:
        """The floor of decoding for so many conversations, if bandwidth and weights are known."""
        bandwidth = self.choices.bandwidth_bytes_per_s
        if bandwidth is None or self.weight_bytes is None or num_conversations < 1:
            return None
        each_device = -(-num_conversations // self.replicas)
        floor = decode_floor(
            self.rank_weight_bytes,
            self.rank_cost.bytes_at(context_tokens),
            each_device,
            bandwidth,
        )
        return replace(floor, num_conversations=num_conversations)

    def at(self, context_tokens: int) -> AtContext:
        """All figures at one context."""
        fitting = self.conversations(context_tokens)
        many = min(self.choices.num_conversations or MOST_TOKENS, 1 if fitting is None else fitting)
        return AtContext(
            context_tokens,
            self.cost.bytes_at(context_tokens),
            self.reserved(context_tokens).total_bytes,
            fitting,
            self.floor(context_tokens, many),
        )

    def ladder(self) -> tuple[int, ...]:
        """Contexts worth a row: powers of two up to the one asked for, and that one."""
        context = self.context_tokens
        powers = [2**power for power in range(10, 41) if 2**power < context]
        return (*powers[-7:], context)
