"""What a shape would cost with one of its numbers changed: ``kv_heads=32``, ``window=null``."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvikk.errors import ModelError
from kvikk.shapes.config import Config, read_int, text_config
from kvikk.shapes.shape import LayerKind, ModelShape

# Short names for what the families of models call differently.
_NAMES = {
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "window": ("sliding_window",),
    "context": ("max_position_embeddings", "n_positions", "max_seq_len"),
}
# Lists with an entry a layer do not outlive another number of layers.
_PER_LAYER = ("layer_types", "mlp_only_layers")


def parse_changes(assignments: Sequence[str]) -> dict[str, Any]:
    """``key=value`` texts as keys and JSON values. Raises ModelError for anything else."""
    changes: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ModelError(
                f"--what-if {assignment!r}: expected key=value, for example kv_heads=32 or "
                "sliding_window=null"
            )
        try:
            value = json.loads(text)
        except ValueError:
            value = text.strip()
        if isinstance(value, float) and not abs(value) < float("inf"):
            raise ModelError(f"--what-if {assignment!r}: {text} is not a number")
        changes[key.strip()] = value
    return changes


def changed_config(config: Config, changes: Mapping[str, Any]) -> Config:
    """The language model's part of ``config`` with ``changes`` made, by the keys it uses itself.

    Windows taken away are left to ``without_windows``.
    """
    text = dict(text_config(config))
    for key, value in changes.items():
        names = _NAMES.get(key, (key,))
        name = next((name for name in names if name in text), names[0])
        if takes_windows_away(key, value):
            continue
        text[name] = value
        if name in _NAMES["layers"]:
            for listed in _PER_LAYER:
                text.pop(listed, None)
    return text


def takes_windows_away(key: str, value: object) -> bool:
    """Whether a change says that every layer sees everything."""
    return value is None and key in ("window", "sliding_window", "attention_chunk_size")


def windows_asked_for(changes: Mapping[str, Any]) -> int | None:
    """The window that a change gives the model, if one does. Raises ModelError for no number."""
    stated = [changes[key] for key in ("window", "sliding_window") if changes.get(key) is not None]
    return read_int({"sliding_window": stated[-1]}, "sliding_window") if stated else None


def with_windows(shape: ModelShape, window_tokens: int) -> ModelShape:
    """The same model, every layer that sees everything sliding instead.

    A model that already has windows keeps its pattern; its configuration has said their size.
    """
    if any(layer.window_tokens for layer in shape.layers):
        return shape
    return replace(
        shape,
        layers=tuple(
            replace(layer, kind=LayerKind.SLIDING, window_tokens=window_tokens)
            if layer.kind == LayerKind.FULL
            else layer
            for layer in shape.layers
        ),
    )


def check_changed(
    config: Config, changes: Mapping[str, Any], before: ModelShape, after: ModelShape
) -> None:
    """Raise ModelError if a change changes nothing because the model has no such key."""
    text = text_config(config)
    unknown = [key for key in changes if key not in text and key not in _NAMES]
    if before == after and unknown:
        raise ModelError(
            f"--what-if {unknown[0]}: the model's configuration has no such key and its cache does "
            f"not depend on it; for example {', '.join(_NAMES)}, or any key of config.json"
        )


def without_windows(shape: ModelShape) -> ModelShape:
    """The same model, its sliding and chunked layers seeing everything."""
    return replace(
        shape,
        layers=tuple(
            replace(layer, kind=LayerKind.FULL, window_tokens=None)
            if layer.kind in (LayerKind.SLIDING, LayerKind.CHUNKED)
            else layer
            for layer in shape.layers
        ),
    )
