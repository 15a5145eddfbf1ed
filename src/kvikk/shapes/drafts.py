"""What speculation adds: a draft model, or layers of the model's own that guess ahead."""

from dataclasses import replace

from kvikk.errors import ModelError
from kvikk.shapes.config import Config, read_count, text_config
from kvikk.shapes.shape import LayerKind, ModelShape

_MTP_KEYS = ("mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_layers")
_MOST_DRAFT_LAYERS = 1000


def mtp_layers(config: Config) -> int:
    """How many layers for multi-token prediction the configuration says the model has."""
    text = text_config(config)
    counts = [read_count(text, key, default=0) for key in _MTP_KEYS]
    return min(max(counts), _MOST_DRAFT_LAYERS)


def with_mtp(shape: ModelShape, num_layers: int) -> ModelShape:
    """The model with ``num_layers`` more, as its last one that attends to everything.

    MTP and EAGLE layers are such copies. Raises ModelError if there is none to copy.
    """
    if not 0 <= num_layers <= _MOST_DRAFT_LAYERS:
        raise ModelError(f"{num_layers} MTP layers: from 0 to {_MOST_DRAFT_LAYERS} is possible")
    if not num_layers:
        return shape
    attending = [
        layer
        for layer in shape.layers
        if layer.kind in (LayerKind.FULL, LayerKind.LATENT) and layer.shares_with is None
    ]
    if not attending:
        raise ModelError("the model has no layer with full attention, as MTP layers have")
    draft = replace(attending[-1], state=None, cross=None)
    return replace(shape, layers=shape.layers + (draft,) * num_layers)


def with_draft(shape: ModelShape, draft: ModelShape) -> ModelShape:
    """The model and its draft model, which keeps a cache of its own of the same tokens."""
    moved = tuple(
        layer
        if layer.shares_with is None
        else replace(layer, shares_with=layer.shares_with + shape.num_layers)
        for layer in draft.layers
    )
    return replace(shape, layers=shape.layers + moved)
