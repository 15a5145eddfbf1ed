"""SGLang's lines about its pools. Its GB are GiB."""

import re
from collections.abc import Iterator, Sequence

from kvikk.shapes.cost import Part
from kvikk.shapes.dtypes import kv_dtypes
from kvikk.shapes.reserve.records import Layers, layers_of
from kvikk.shapes.reserve.sglang import split_parts
from kvikk.shapes.shape import ModelShape
from kvikk.shapes.start_logs.records import Comparison, Printed, Subject

_GIB = 2**30

_TP = re.compile(r"\btp_size=(\d+)|--tp(?:-size)?[ =](\d+)|--tensor-parallel-size[ =](\d+)")
_DP_ATTENTION = re.compile(r"enable_dp_attention=True|--enable-dp-attention")
_POOL = re.compile(
    r"KV Cache is allocated\.(?: dtype: (?P<dtype>[\w.]+),)? #tokens: (?P<tokens>[\d,]+), "
    r"(?:K size: (?P<k>[\d.]+) GB, V size: (?P<v>[\d.]+) GB|KV size: (?P<kv>[\d.]+) GB)"
)
_DTYPE = re.compile(r"Using KV cache dtype: ([\w.]+)")
_WINDOWS = re.compile(
    r"SWAKVPool mem usage: (?P<total>[\d.]+) GB, swa size: (?P<swa>\d+), full size: (?P<full>\d+)"
)
_STATES = re.compile(
    r"Mamba Cache is allocated\.\s*max_mamba_cache_size: (?P<states>\d+), "
    r"conv_state size: (?P<conv>[\d.]+) ?GB,\s*ssm_state size: (?P<ssm>[\d.]+) ?GB"
)


def check(lines: Sequence[str], subject: Subject) -> Iterator[Comparison]:
    """Compare each line about memory pools that SGLang has printed."""
    tp, dp_attention = subject.tp, subject.dp_attention
    dtypes = subject.dtypes
    for number, line in enumerate(lines, 1):
        if match := _TP.search(line):
            tp = int(next(group for group in match.groups() if group))
        if _DP_ATTENTION.search(line):
            dp_attention = True
        if match := _DTYPE.search(line):
            dtypes = kv_dtypes(match[1])
        if match := _POOL.search(line):
            if match["dtype"]:
                dtypes = kv_dtypes(match["dtype"])
            layers = layers_of(subject.shape, dtypes, tp=tp, dp_attention=dp_attention)
            yield from _pool(number, match, subject.shape, layers, tp)
        if match := _WINDOWS.search(line):
            layers = layers_of(subject.shape, dtypes, tp=tp, dp_attention=dp_attention)
            yield from _windows(number, match, layers)
        if match := _STATES.search(line):
            layers = layers_of(subject.shape, dtypes, tp=tp, dp_attention=dp_attention)
            yield from _states(number, match, layers, tp)


def _pool(
    number: int, match: re.Match[str], shape: ModelShape, layers: Layers, tp: int
) -> Iterator[Comparison]:
    """One pool of token slots. With windows there are two such lines, one a kind of layer."""
    tokens = int(match["tokens"].replace(",", ""))
    full, windows, _ = split_parts(layers)
    ranks = f", of {tp} ranks one" * (tp > 1)
    if match["kv"] is not None:
        rule = f"{tokens:,} tokens of latents{ranks}"
        yield _compared(number, "KV", Printed(match["kv"]), tokens * _bytes(full), rule)
        return
    pools = {"full layers": full, "window layers": windows}
    for figure, printed in (("K", Printed(match["k"])), ("V", Printed(match["v"]))):
        sizes = {
            name: tokens * _bytes(parts) * _share(shape, figure, name == "window layers")
            for name, parts in pools.items()
            if parts
        }
        name = next(
            (name for name, size in sizes.items() if printed.agrees(size / _GIB)), "full layers"
        )
        rule = f"{tokens:,} tokens" + f" of {name}" * bool(windows) + ranks
        yield _compared(number, figure, printed, sizes[name], rule)


def _share(shape: ModelShape, figure: str, windows: bool) -> float:
    """The share of keys, or of values, in what a token's layers keep."""
    layers = [layer for layer in shape.layers if layer.shares_with is None and layer.key_elements]
    layers = [layer for layer in layers if (layer.window_tokens is not None) == windows] or layers
    keys = sum(layer.key_elements for layer in layers)
    values = sum(layer.value_elements for layer in layers)
    return (keys if figure == "K" else values) / (keys + values)


def _windows(number: int, match: re.Match[str], layers: Layers) -> Iterator[Comparison]:
    full, windows, _ = split_parts(layers)
    full_tokens, window_tokens = int(match["full"]), int(match["swa"])
    size = full_tokens * _bytes(full) + window_tokens * _bytes(windows)
    rule = (
        f"{full_tokens:,} tokens of full layers and {window_tokens / full_tokens:.2f} of them "
        "of window layers (--swa-full-tokens-ratio)"
    )
    yield _compared(number, "both pools", Printed(match["total"]), size, rule)


def _states(number: int, match: re.Match[str], layers: Layers, tp: int) -> Iterator[Comparison]:
    states = int(match["states"])
    for figure, kind, printed in (
        ("convolutions", "convolution", Printed(match["conv"])),
        ("states", "recurrent", Printed(match["ssm"])),
    ):
        parts = [part for layer in layers for part in layer if part.kind == kind]
        rule = f"{states:,} states and a spare one, {len(parts)} layers"
        rule += f", divided by {tp} ranks" * (tp > 1)
        yield _compared(number, figure, printed, (states + 1) * _fixed(parts), rule)


def _bytes(parts: Sequence[Part]) -> float:
    return sum(part.bytes_per_token for part in parts)


def _fixed(parts: Sequence[Part]) -> int:
    return sum(part.fixed_bytes for part in parts)


def _compared(
    number: int, figure: str, printed: Printed, size_bytes: float, rule: str
) -> Comparison:
    computed = size_bytes / _GIB
    return Comparison(
        number,
        figure,
        f"{printed.text} GiB",
        f"{printed.like(computed)} GiB",
        printed.agrees(computed),
        rule,
    )
