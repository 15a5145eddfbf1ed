"""The arithmetic of a model's cache written out in its own numbers, for people to check."""

from collections import Counter
from dataclasses import dataclass

from kvikk.shapes.cost import layer_parts
from kvikk.shapes.dtypes import PACKED_LATENTS, CacheDtype, KvDtypes, cache_dtype
from kvikk.shapes.shape import LayerCache, LayerKind, ModelShape


@dataclass(frozen=True)
class Term:
    """What equal layers keep, in words: ``2 · 8 KV heads · 128 · 2 bytes · 32 layers``.

    ``bytes_per_token`` is theirs together, while they grow: to ``window_tokens`` where that is set.
    ``fixed_bytes`` do not grow.
    """

    text: str
    kind: str
    bytes_per_token: float
    window_tokens: int | None
    fixed_bytes: int


def terms(shape: ModelShape, dtypes: KvDtypes) -> tuple[Term, ...]:
    """A term for each kind of part, over all layers that are alike in it.

    Raises ModelError if a type cannot store the model's rows.
    """
    model_dtype = cache_dtype(shape.dtype)
    counts: Counter[tuple[str, str, float, int | None, int]] = Counter()
    for layer in shape.layers:
        for part in layer_parts(layer, dtypes, model_dtype):
            text = _text(part.kind, layer, dtypes, model_dtype)
            counts[text, part.kind, part.bytes_per_token, part.window_tokens, part.fixed_bytes] += 1
    return tuple(
        Term(
            f"{text} · {count} layer{'s' * (count > 1)}",
            kind,
            count * bytes_per_token,
            window_tokens,
            count * fixed_bytes,
        )
        for (text, kind, bytes_per_token, window_tokens, fixed_bytes), count in counts.items()
    )


def _text(kind: str, layer: LayerCache, dtypes: KvDtypes, model_dtype: CacheDtype) -> str:
    match kind:
        case "indexer" | "compressed":
            entries = layer.indexer if kind == "indexer" else layer.compressed
            assert entries is not None
            packed = entries.packed_bytes is not None and (
                kind == "indexer" or dtypes.key.name == PACKED_LATENTS
            )
            size = (
                f"{entries.packed_bytes} bytes"
                if packed
                else f"{entries.elements} · {_element(dtypes.key)}"
            )
            every = entries.tokens_per_entry
            return size + (f" for every {every} tokens" if every > 1 else "")
        case "convolution" | "recurrent":
            assert layer.state is not None
            if kind == "convolution":
                return f"{layer.state.conv_elements:,} · {_element(model_dtype)}"
            dtype = cache_dtype(layer.state.recurrent_dtype)
            return f"{layer.state.recurrent_elements:,} · {_element(dtype)}"
        case LayerKind.CROSS:
            assert layer.cross is not None
            rows = _rows(
                layer.cross.key_elements, layer.cross.value_elements, layer.kv_heads, dtypes
            )
            return f"{rows} · {layer.cross.encoder_tokens:,} encoder tokens"
        case _ if layer.packed_bytes is not None and dtypes.key.name == PACKED_LATENTS:
            return f"{layer.packed_bytes} bytes"
        case _ if not layer.value_elements:
            return f"{layer.key_elements} · {_element(dtypes.key)}"
        case _:
            return _rows(layer.key_elements, layer.value_elements, layer.kv_heads, dtypes)


def _rows(keys: int, values: int, kv_heads: int, dtypes: KvDtypes) -> str:
    heads = f"{kv_heads} KV head{'s' * (kv_heads > 1)}"
    key_size, value_size = keys // kv_heads, values // kv_heads
    if dtypes.key != dtypes.value:
        return (
            f"{heads} · ({key_size} · {_element(dtypes.key)} + "
            f"{value_size} · {_element(dtypes.value)})"
        )
    if keys == values:
        return f"2 · {heads} · {key_size} · {_element(dtypes.key)}"
    return f"{heads} · ({key_size} + {value_size}) · {_element(dtypes.key)}"


def _element(dtype: CacheDtype) -> str:
    scale = f" (+ {dtype.head_scale_bytes} a head)" if dtype.head_scale_bytes else ""
    if dtype.block_elements == 1:
        return f"{dtype.block_bytes} byte{'s' * (dtype.block_bytes > 1)}{scale}"
    return f"{dtype.block_bytes}/{dtype.block_elements} bytes{scale}"
