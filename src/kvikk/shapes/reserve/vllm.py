"""vLLM: pages of one size for all layers, in groups of equally many layers.

A block pool can only hand out blocks of one size. So an attention page grows until it holds a
recurrent state, and the state's page is padded to it; the block size of layers with small pages is
multiplied until all pages are equal; and layers form groups of equally many, one block table a
group, so that one block serves the layer at each place of a group:

    10 full, 20 sliding layers     group size 10     groups: full, sliding, sliding
    a request's blocks             full blocks + 2 * sliding blocks, each of 10 pages

Source: vLLM 0.2x, ``v1/core/kv_cache_utils.py``, ``v1/kv_cache_interface.py`` and
``model_executor/models/config.py``.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvikk.shapes.cost import Part
from kvikk.shapes.reserve.records import Layers, Reserved
from kvikk.shapes.shape import LayerKind

# A kernel reads blocks of multiples of 16 tokens, of 64 where latents are kept.
_ALIGNMENT_TOKENS, _LATENT_ALIGNMENT_TOKENS = 16, 64


@dataclass(frozen=True)
class VllmSettings:
    """What one starts vLLM with.

    ``state_blocks`` is what a recurrent layer keeps beside one block a speculative token: 1, or 2
    with prefix caching (``mamba_cache_mode`` align). The convolution remembers
    ``convolution_tokens``, and one more for each speculative one. ``hybrid`` False counts windows
    as full attention (``--disable-hybrid-kv-cache-manager``, and releases before there was one).
    """

    block_size: int = 16
    max_num_batched_tokens: int = 8192
    speculative_tokens: int = 0
    state_blocks: int = 1
    convolution_tokens: int = 3
    hybrid: bool = True


@dataclass(frozen=True)
class Pages:
    """The pages of one layer: ``page_bytes`` for ``block_size`` tokens.

    ``kind`` is ``full``, ``sliding``, ``chunked``, ``cross`` or ``state``; a state's page holds
    one, whatever the block size.
    """

    kind: LayerKind
    block_size: int
    page_bytes: int
    window_tokens: int | None = None
    cross_tokens: int = 0

    def blocks(self, context_tokens: int, settings: VllmSettings) -> int:
        """The most blocks that a request of ``context_tokens`` ever holds."""
        step = settings.max_num_batched_tokens
        if self.kind is LayerKind.STATE:
            return settings.state_blocks + settings.speculative_tokens
        if self.kind is LayerKind.CROSS:
            return -(-self.cross_tokens // self.block_size)
        if self.window_tokens is None:
            return -(-context_tokens // self.block_size)
        if self.kind is LayerKind.CHUNKED:
            return -(-min(self.window_tokens + step, context_tokens) // self.block_size)
        # One more, since a window may begin inside a block.
        return -(-min(self.window_tokens - 1 + step, context_tokens) // self.block_size) + 1

    def with_block_size(self, block_size: int) -> "Pages":
        """The same layer in larger or smaller blocks."""
        page_bytes = self.page_bytes * block_size // self.block_size
        return replace(self, block_size=block_size, page_bytes=page_bytes)


@dataclass(frozen=True)
class VllmLayout:
    """How vLLM cuts a model's cache: ``block_bytes`` is one block of all layers of a group."""

    settings: VllmSettings
    groups: tuple[Pages, ...]
    block_bytes: int
    rules: tuple[str, ...]
    state_bytes: int = 0  # of the largest recurrent state, before its page is padded

    @property
    def block_size(self) -> int:
        """Tokens of a block: of the group that has the smallest ones."""
        return min(group.block_size for group in self.groups)

    def blocks(self, context_tokens: int) -> int:
        """Blocks of one request of ``context_tokens``, over all groups."""
        return sum(group.blocks(context_tokens, self.settings) for group in self.groups)

    def request_bytes(self, context_tokens: int) -> int:
        """What one request of ``context_tokens`` sets aside."""
        return self.blocks(context_tokens) * self.block_bytes

    def num_blocks(self, available_bytes: int) -> int:
        """Blocks that fit into what is left for the cache."""
        return available_bytes // self.block_bytes

    def concurrency(self, num_blocks: int, context_tokens: int) -> float:
        """How many requests of ``context_tokens`` fit at once: a fraction."""
        return num_blocks / self.blocks(context_tokens)

    def longest_context(self, available_bytes: int, most_tokens: int) -> int:
        """The longest request that fits alone, at most ``most_tokens``; 0 if none does."""
        low, high = 0, most_tokens
        while low < high:
            middle = (low + high + 1) // 2
            if self.request_bytes(middle) <= available_bytes:
                low = middle
            else:
                high = middle - 1
        return low


def layout(layers: Layers, settings: VllmSettings) -> VllmLayout | None:
    """How vLLM lays out these layers on a rank; None for a model that caches nothing."""
    rules: list[str] = []
    latent = any(part.kind == LayerKind.LATENT for parts in layers for part in parts)
    alignment = _LATENT_ALIGNMENT_TOKENS if latent else _ALIGNMENT_TOKENS
    pages = _pages(layers, settings)
    if not pages:
        return None
    states = [page.page_bytes for page in pages if page.kind is LayerKind.STATE]
    pages = _with_room_for_states(pages, alignment, rules)
    if len({(page.kind, page.window_tokens) for page in pages}) == 1:
        # Layers of one kind, whatever their sizes: one group, and each has pages of its own.
        rules.append(f"blocks of {pages[0].block_size} tokens")
        total = sum(page.page_bytes for page in pages)
        return VllmLayout(settings, (pages[0],), total, tuple(rules))
    pages = _with_equal_pages(pages, rules)
    counts = Counter(pages)
    fewest, most = min(counts.values()), max(counts.values())
    group_size = most if most < 1.5 * fewest else fewest
    groups = tuple(page for page, count in counts.items() for _ in range(-(-count // group_size)))
    padding = len(groups) * group_size - len(pages)
    rules.append(
        f"{len(groups)} groups of {group_size} layers"
        + (f", {padding} of them padding" if padding else "")
        + f"; a block is {group_size} pages of {pages[0].page_bytes:,} bytes"
    )
    return VllmLayout(
        settings,
        groups,
        pages[0].page_bytes * group_size,
        tuple(rules),
        state_bytes=max(states, default=0),
    )


def reserve(layers: Layers, context_tokens: int, settings: VllmSettings) -> Reserved:
    """What vLLM sets aside on one rank for a request of ``context_tokens``."""
    plan = layout(layers, settings)
    if plan is None:
        return Reserved("vllm", 0, ())
    rules = list(plan.rules)
    if any(group.window_tokens for group in plan.groups):
        rules.append(f"a window also holds a step of {settings.max_num_batched_tokens:,} tokens")
    return Reserved("vllm", plan.request_bytes(context_tokens), tuple(rules))


def _pages(layers: Layers, settings: VllmSettings) -> list[Pages]:
    """A record for each cache: a layer with attention and a state, or an indexer, has two."""
    pages = []
    for parts in layers:
        state_bytes = 0
        for part in parts:
            if part.kind == "convolution":
                tokens = settings.convolution_tokens
                state_bytes += part.fixed_bytes * (tokens + settings.speculative_tokens) // tokens
            elif part.kind == "recurrent":
                state_bytes += part.fixed_bytes
            else:
                pages.append(_attention_pages(part, settings))
        if state_bytes:
            pages.append(Pages(LayerKind.STATE, settings.block_size, state_bytes))
    return pages


def _attention_pages(part: Part, settings: VllmSettings) -> Pages:
    block_size = settings.block_size
    page_bytes = part.bytes_per_entry * block_size // part.tokens_per_entry
    if part.fixed_entries is not None:
        return Pages(LayerKind.CROSS, block_size, page_bytes, cross_tokens=part.fixed_entries)
    if part.window_tokens is not None and settings.hybrid:
        return Pages(LayerKind(part.kind), block_size, page_bytes, part.window_tokens)
    return Pages(LayerKind.FULL, block_size, page_bytes)


def _with_room_for_states(pages: Sequence[Pages], alignment: int, rules: list[str]) -> list[Pages]:
    """Attention blocks that are large enough to hold a state, and states padded to them."""
    states = [page.page_bytes for page in pages if page.kind is LayerKind.STATE]
    attention = [page for page in pages if page.kind is not LayerKind.STATE]
    if not states or not attention:
        return list(pages)
    smallest = min(attention, key=lambda page: page.page_bytes)
    step_bytes = smallest.page_bytes * alignment // smallest.block_size
    block_size = max(smallest.block_size, -(-max(states) // step_bytes) * alignment)
    grown = [page.with_block_size(block_size) for page in attention]
    state_page = min(page.page_bytes for page in grown)
    rules.append(
        f"attention blocks of {block_size:,} tokens, to hold a state of {max(states):,} bytes"
    )
    return [
        replace(page, block_size=block_size, page_bytes=state_page)
        if page.kind is LayerKind.STATE
        else page.with_block_size(block_size)
        for page in pages
    ]


def _with_equal_pages(pages: Sequence[Pages], rules: list[str]) -> list[Pages]:
    """Pages of one size: small ones get more tokens, or padding where that does not come out."""
    largest = max(page.page_bytes for page in pages)
    equal = []
    for page in pages:
        if page.kind is LayerKind.STATE or largest % page.page_bytes:
            equal.append(replace(page, page_bytes=largest))
        else:
            factor = largest // page.page_bytes
            equal.append(page.with_block_size(page.block_size * factor))
    if equal == list(pages):
        return equal
    sizes = sorted({page.block_size for page in equal if page.kind is not LayerKind.STATE})
    rules.append(f"blocks of {' or '.join(f'{size:,}' for size in sizes)} tokens make pages equal")
    return equal
