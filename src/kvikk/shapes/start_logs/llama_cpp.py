"""llama.cpp's lines, from ``KV self size`` of 2023 to ``llama_memory_recurrent`` of 2026."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from kvikk.shapes.dtypes import cache_dtype
from kvikk.shapes.reserve.llama_cpp import LlamaCppSettings, full_cells, window_cells
from kvikk.shapes.shape import LayerCache, ModelShape
from kvikk.shapes.start_logs.records import Comparison, Printed, Subject

_MIB = 2**20
_OLD_DEFAULT_CONTEXT = 512
_CONTEXT_MULTIPLE = 32

_SETTING = re.compile(
    r"(?:llama_context|llama_new_context_with_model|common_init\w*|llama_init_from_model)\s*:\s*"
    r"(n_seq_max|n_ctx_seq|n_ctx|n_ubatch|n_batch|kv_unified)\s*=\s*(\w+)"
)
_OLD_CELLS = re.compile(r"\bkv_size = (\d+)")
_FULL_WINDOWS = re.compile(r"using full-size SWA cache")
_CREATING = re.compile(r"creating\s+(non-SWA|SWA) KV cache, size = (\d+) cells")
_CACHE = re.compile(
    r"size\s*=\s*(?P<total>[\d.]+) MiB \(\s*(?P<cells>\d+) cells,\s*(?P<layers>\d+) layers,"
    r"\s*(?P<seqs>\d+)(?:/\s*(?P<streams>\d+))? seqs\), "
    r"K \((?P<ktype>\w+)\):\s*(?P<k>[\d.]+) MiB, V \((?P<vtype>\w+)\):\s*(?P<v>[\d.]+) MiB"
)
_SELF_SIZE = re.compile(
    r"(?:KV|kv) self size\s*=\s*(?P<total>[\d.]+) Mi?B"
    r"(?:, K \((?P<ktype>\w+)\):\s*(?P<k>[\d.]+) MiB, V \((?P<vtype>\w+)\):\s*(?P<v>[\d.]+) MiB"
    r"|, c\^KV \((?P<ctype>\w+)\):\s*(?P<c>[\d.]+) MiB)?",
)
_STATES = re.compile(
    r"llama_memory_recurrent: size =\s*(?P<total>[\d.]+) MiB \(\s*(?P<cells>\d+) cells,"
    r"\s*(?P<layers>\d+) layers,\s*(?P<seqs>\d+) seqs(?:\s+(?P<rollback>\d+) rs_seq)?\), "
    r"R \(f32\):\s*(?P<r>[\d.]+) MiB, S \(f32\):\s*(?P<s>[\d.]+) MiB"
)


@dataclass
class _Seen:
    """What the log has said so far."""

    context_tokens: int | None = None
    settings: LlamaCppSettings = field(default_factory=LlamaCppSettings)
    windows: bool | None = None  # whether the next cache is that of the windows; None: of all

    def note(self, name: str, value: str) -> None:
        if name == "n_ctx":
            self.context_tokens = int(value)
            self.settings = replace(self.settings, full_windows=False)
            self.windows = None
        elif name == "n_seq_max":
            self.settings = replace(self.settings, slots=int(value))
        elif name == "n_ubatch":
            self.settings = replace(self.settings, batch_tokens=int(value))
        elif name == "kv_unified":
            self.settings = replace(self.settings, unified=value in ("1", "true"))


def check(lines: Sequence[str], subject: Subject) -> Iterator[Comparison]:
    """Compare each line about the cache that llama.cpp has printed."""
    seen = _Seen()
    for number, line in enumerate(lines, 1):
        if match := _SETTING.search(line):
            seen.note(match[1], match[2])
        elif match := _OLD_CELLS.search(line):
            seen.context_tokens = int(match[1])
        elif _FULL_WINDOWS.search(line):
            seen.settings = replace(seen.settings, full_windows=True)
        elif match := _CREATING.search(line):
            seen.windows = match[1] == "SWA"
            yield from _cells(number, Printed(match[2]), seen, subject)
        elif match := _CACHE.search(line):
            streams = int(match["streams"] or 1)
            cells = int(match["cells"]) * streams
            times = f" in {streams} streams" * (streams > 1)
            rule = f"{int(match['cells']):,} cells{times}, {match['layers']} layers"
            yield from _sizes(number, match, cells, rule, seen.windows, subject)
        elif match := _SELF_SIZE.search(line):
            said = seen.context_tokens
            cells, why = _unsaid_cells(match, subject) if said is None else (said, "")
            yield from _sizes(number, match, cells, f"{cells:,} cells{why}", None, subject)
        elif match := _STATES.search(line):
            yield from _states(number, match, subject)


def _unsaid_cells(match: re.Match[str], subject: Subject) -> tuple[int, str]:
    """The cells that a size is of where the log does not say them, and where they are from.

    The round number that explains it, else what llama.cpp took then when it was told nothing.
    """
    default = _OLD_DEFAULT_CONTEXT, ", its default"
    printed = Printed(match["total"])
    if match["ctype"]:
        cell_bytes = _cell_bytes(subject.shape, None, "c^KV", match["ctype"])
    else:
        cell_bytes = sum(
            _cell_bytes(subject.shape, None, name, kind or "f16")
            for name, kind in (("K", match["ktype"]), ("V", match["vtype"]))
        )
    if not cell_bytes:
        return default
    cells = round(printed.value * _MIB / cell_bytes / _CONTEXT_MULTIPLE) * _CONTEXT_MULTIPLE
    explains = cells > 0 and printed.agrees(cells * cell_bytes / _MIB)
    return (cells, ", inferred") if explains else default


def _cells(number: int, printed: Printed, seen: _Seen, subject: Subject) -> Iterator[Comparison]:
    """The cells of a cache, where the log has said for how long a context."""
    if seen.context_tokens is None:
        return
    settings = seen.settings
    cells = full_cells(seen.context_tokens, settings)
    figure, rule = "cells of full layers", f"-c {seen.context_tokens:,}, up to 256 a slot"
    if seen.windows:
        windows = {layer.window_tokens for layer in subject.shape.layers} - {None}
        window = max((tokens for tokens in windows if tokens is not None), default=0)
        cells = window_cells(seen.context_tokens, window, settings)
        figure = "cells of window layers"
        rule = (
            "--swa-full: as many as full layers"
            if settings.full_windows
            else f"window {window:,} + {settings.batch_tokens:,} of a step, up to 256"
        )
    yield Comparison(
        number,
        figure,
        f"{int(printed.value):,}",
        f"{cells.cells:,}",
        printed.agrees(cells.cells),
        rule,
    )


def _sizes(
    number: int,
    match: re.Match[str],
    cells: int,
    rule: str,
    windows: bool | None,
    subject: Subject,
) -> Iterator[Comparison]:
    """Keys and values of one cache in MiB: in the model's form, or another in use."""
    printed = [
        (name, Printed(match[group]), match[kind])
        for name, group, kind in (("K", "k", "ktype"), ("V", "v", "vtype"), ("c^KV", "c", "ctype"))
        if group in match.re.groupindex and match[group] is not None
    ]
    if not printed:  # 2023: one figure for both, f16
        printed = [("K and V", Printed(match["total"]), "f16")]
    forms = [("", subject.shape), *subject.variants]
    computed = [
        [cells * _cell_bytes(shape, windows, name, kind) / _MIB for name, _, kind in printed]
        for _, shape in forms
    ]
    remark, sizes = next(
        (
            (form, sizes)
            for (form, _), sizes in zip(forms, computed, strict=True)
            if all(one.agrees(size) for (_, one, _), size in zip(printed, sizes, strict=True))
        ),
        (_disagreement(match, windows, subject), computed[0]),
    )
    for (name, figure, kind), size in zip(printed, sizes, strict=True):
        yield Comparison(
            number,
            f"{name} ({kind})",
            f"{figure.text} MiB",
            f"{figure.like(size)} MiB",
            figure.agrees(size),
            f"{rule}; {remark}" if remark else rule,
        )


def _cell_bytes(shape: ModelShape, windows: bool | None, name: str, dtype: str) -> int:
    """Bytes of a token's keys, values or both, in all layers of one cache."""
    kind = cache_dtype(dtype)
    layers = _chosen(shape.layers, windows)
    keys = 0 if name == "V" else sum(layer.key_elements for layer in layers)
    values = 0 if name == "K" else sum(layer.value_elements for layer in layers)
    return kind.row_bytes(keys) + kind.row_bytes(values)


def _disagreement(match: re.Match[str], windows: bool | None, subject: Subject) -> str:
    """Why a size may differ, as far as the line itself tells."""
    layers = len(_chosen(subject.shape.layers, windows))
    if "layers" in match.re.groupindex and int(match["layers"]) != layers:
        return f"the model has {layers} such layers: is this another model's cache, or a draft's?"
    return "not this model's heads or data type"


def _states(number: int, match: re.Match[str], subject: Subject) -> Iterator[Comparison]:
    """Recurrent states: float32, one a sequence and one for each step that may be rolled back."""
    states = [layer.state for layer in subject.shape.layers if layer.state is not None]
    rollback = int(match["rollback"] or 0)
    copies = int(match["cells"]) * (1 + rollback)
    rule = f"{copies} copies in float32, {len(states)} layers with a state"
    if rollback:
        rule += f"; 1 + {rollback} to roll back a sequence"
    for figure, printed, elements in (
        ("R (convolution)", Printed(match["r"]), sum(state.conv_elements for state in states)),
        ("S (recurrent)", Printed(match["s"]), sum(state.recurrent_elements for state in states)),
    ):
        size = copies * elements * 4 / _MIB
        yield Comparison(
            number,
            figure,
            f"{printed.text} MiB",
            f"{printed.like(size)} MiB",
            printed.agrees(size),
            rule,
        )


def _chosen(layers: Sequence[LayerCache], windows: bool | None) -> list[LayerCache]:
    """The layers of one cache: those with a window, those without, or all."""
    return [
        layer
        for layer in layers
        if layer.shares_with is None
        and layer.key_elements
        and (windows is None or (layer.window_tokens is not None) == windows)
    ]
