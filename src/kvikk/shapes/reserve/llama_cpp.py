"""llama.cpp: cells for the whole context of every slot, taken at the start.

``-c`` is shared by the slots. Each has a stream of its own with its part of it, up to a multiple of
256 cells; or, unified, all share one. Layers with a window have a second cache of fewer cells.
Recurrent states are float32 whatever the type of the cache.

Source: llama.cpp ``src/llama-context.cpp``, ``llama-kv-cache.cpp``, ``llama-kv-cache-iswa.cpp``,
``llama-memory-recurrent.cpp``; ggml-org/llama.cpp at 02c28f53 and llama-cpp-python 0.3.36.
"""

from dataclasses import dataclass

from kvikk.shapes.reserve.records import Layers, Reserved, rounded_up

_PADDING_CELLS = 256


@dataclass(frozen=True)
class LlamaCppSettings:
    """What one starts llama.cpp with.

    ``slots`` is ``--parallel``; ``unified`` is ``--kv-unified``; ``batch_tokens`` is
    ``--ubatch-size``. ``full_windows`` is ``--swa-full``. ``rollback_states`` are further copies
    of a recurrent state a slot, which speculation needs.
    """

    slots: int = 1
    unified: bool = False
    batch_tokens: int = 512
    full_windows: bool = False
    rollback_states: int = 0


@dataclass(frozen=True)
class Cells:
    """Cells of one stream, and the streams."""

    cells: int
    streams: int

    @property
    def total(self) -> int:
        """Cells of all streams."""
        return self.cells * self.streams


def full_cells(context_tokens: int, settings: LlamaCppSettings) -> Cells:
    """Cells of the layers that see everything. ``context_tokens`` is ``-c``, for all slots."""
    if settings.unified:
        return Cells(rounded_up(context_tokens, _PADDING_CELLS), 1)
    a_slot = rounded_up(context_tokens // settings.slots, _PADDING_CELLS)
    return Cells(max(a_slot, _PADDING_CELLS), settings.slots)


def window_cells(context_tokens: int, window_tokens: int, settings: LlamaCppSettings) -> Cells:
    """Cells of the layers with a window."""
    full = full_cells(context_tokens, settings)
    if settings.full_windows:
        return full
    windows = window_tokens * (settings.slots if settings.unified else 1)
    wanted = rounded_up(windows + settings.batch_tokens, _PADDING_CELLS)
    return Cells(min(full.cells, wanted), full.streams)


def reserve(layers: Layers, context_tokens: int, settings: LlamaCppSettings) -> Reserved:
    """What llama.cpp takes for ``-c context_tokens``: all slots together.

    ``layers`` are those of a shape ``with_float_states``.
    """
    total = 0
    full = full_cells(context_tokens, settings)
    rules = [f"{full.cells:,} cells" + (f" in each of {full.streams} streams" * (full.streams > 1))]
    for part in (part for layer in layers for part in layer):
        if part.kind in ("convolution", "recurrent"):
            total += part.fixed_bytes * settings.slots * (1 + settings.rollback_states)
        elif part.fixed_entries is not None:
            total += part.fixed_bytes * settings.slots
        elif part.window_tokens is None:
            total += full.total * part.bytes_per_entry // part.tokens_per_entry
        else:
            cells = window_cells(context_tokens, part.window_tokens, settings)
            rules.append(f"{cells.cells:,} cells for windows of {part.window_tokens:,}")
            total += cells.total * part.bytes_per_entry
    return Reserved("llamacpp", total, tuple(dict.fromkeys(rules)))
