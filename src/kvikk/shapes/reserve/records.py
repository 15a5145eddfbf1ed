"""What the engines' rules are told of a model, and what they answer."""

from dataclasses import dataclass, replace

from kvikk.shapes.cost import Part, rank_cost
from kvikk.shapes.dtypes import KvDtypes
from kvikk.shapes.shape import ModelShape

# What each layer keeps, in the model's order; nothing for one that reads another's cache.
Layers = tuple[tuple[Part, ...], ...]


@dataclass(frozen=True)
class Reserved:
    """What an engine sets aside on one rank, in bytes, and by which rules, in words."""

    engine: str
    total_bytes: int
    rules: tuple[str, ...]


def layers_of(
    shape: ModelShape,
    dtypes: KvDtypes | None = None,
    encoder_tokens: int | None = None,
    *,
    tp: int = 1,
    dp_attention: bool = False,
) -> Layers:
    """The parts of each layer's cache as one of ``tp`` ranks holds them.

    Raises ModelError as ``rank_cost`` does.
    """
    known = {
        layer: tuple(
            part
            for part, _ in rank_cost(
                replace(shape, layers=(layer,)),
                dtypes,
                encoder_tokens,
                tp=tp,
                dp_attention=dp_attention,
            ).parts
        )
        for layer in set(shape.layers)
    }
    return tuple(known[layer] for layer in shape.layers)


def with_float_states(shape: ModelShape) -> ModelShape:
    """The same model, its states and their convolutions kept in float32, as llama.cpp does."""
    return replace(
        shape,
        dtype="f32",
        layers=tuple(
            layer
            if layer.state is None
            else replace(layer, state=replace(layer.state, recurrent_dtype="f32"))
            for layer in shape.layers
        ),
    )


def with_plain_indexers(shape: ModelShape) -> ModelShape:
    """The same model, its indexers' keys in the type of the cache, as transformers has them."""
    return replace(
        shape,
        layers=tuple(
            layer
            if layer.indexer is None
            else replace(layer, indexer=replace(layer.indexer, packed_bytes=None))
            for layer in shape.layers
        ),
    )


def rounded_up(amount: int, multiple: int) -> int:
    """``amount``, up to the next ``multiple``."""
    return -(-amount // multiple) * multiple
