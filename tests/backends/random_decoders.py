"""Small decoders with random weights, of any shape and any tensor type."""

from dataclasses import dataclass, replace

import numpy as np

from kvikk.files.quantization import BLOCK_FORMATS, dequantize
from kvikk.files.tensors import Tensor
from kvikk.models.decoder import (
    Activation,
    Attention,
    Decoder,
    DecoderLayer,
    FeedForward,
    Matrix,
    Mixture,
    Norm,
    Rotation,
)
from kvikk.shapes.shape import LayerCache, LayerKind, ModelShape

# Where a block's float16 scales lie, in halves from its start.
_SCALE_HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 1),
    "Q5_0": (0,),
    "Q5_1": (0, 1),
    "Q8_0": (0,),
    "IQ4_NL": (0,),
    "Q2_K": (40, 41),
    "Q3_K": (54,),
    "Q4_K": (0, 1),
    "Q5_K": (0, 1),
    "Q6_K": (104,),
}
# What makes weights of about unit size out of a type's integers.
_SCALE = {
    "Q4_0": 0.2,
    "Q4_1": 0.2,
    "Q5_0": 0.1,
    "Q5_1": 0.1,
    "Q8_0": 0.014,
    "IQ4_NL": 0.014,
    "Q2_K": 0.1,
    "Q3_K": 0.02,
    "Q4_K": 0.007,
    "Q5_K": 0.003,
    "Q6_K": 0.0008,
}


def random_tensor(
    dtype: str, rows: int, columns: int, rng: np.random.Generator, name: str = "random"
) -> Tensor:
    """A matrix of values of about 1, as a file of that type would hold it."""
    if dtype in _SCALE:
        block = BLOCK_FORMATS[dtype]
        shape = (rows * columns // block.num_elements, block.num_bytes)
        data = rng.integers(0, 256, shape, np.uint8)
        halves = data.view(np.float16)
        for place in _SCALE_HALVES[dtype]:
            halves[:, place] = _SCALE[dtype] * rng.uniform(0.5, 1.5, len(data))
        if dtype in ("Q4_1", "Q5_1"):  # the minimum puts zero in the middle
            halves[:, 1] = -halves[:, 0] * (7.5 if dtype == "Q4_1" else 15.5)
        return Tensor(name, dtype, (rows, columns), data.reshape(-1))
    values = rng.normal(size=(rows, columns)).astype(np.float32)
    if dtype == "F16":
        data = values.astype(np.float16).view(np.uint8)
    elif dtype == "BF16":
        data = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    else:
        data = values.view(np.uint8)
    return Tensor(name, dtype, (rows, columns), data.reshape(-1))


@dataclass(frozen=True)
class Shape:
    """What to vary. ``dtypes`` are those of query, key, value, output, gate, up, down, head."""

    hidden_size: int = 64
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    feed_forward_size: int = 96
    vocabulary_size: int = 101
    windows: tuple[int | None, ...] = (None, None)
    dtypes: tuple[str, ...] = ("F32",) * 8
    activation: Activation = "silu"
    rich: bool = False  # norms of queries and keys, norms behind both halves, a scaled embedding
    tied: bool = True
    biased: bool = False  # every matrix but the head
    gated: bool = True
    layer_norms: bool = False  # and learned positions, none of them rotated
    norms_behind_only: bool = False  # and queries and keys normed whole
    score_cap: float | None = None
    logit_cap: float | None = None
    rotated: tuple[int | None, ...] = ()  # dimensions of each layer's rotation; all where empty
    stretch: float = 1.0
    num_experts: int = 0  # in all layers, where there are any
    num_used_experts: int = 2


def random_decoder(shape: Shape, seed: int = 0) -> Decoder:
    """A decoder whose logits vary by about 1 and depend on all of it."""
    rng = np.random.default_rng(seed)

    def matrix(dtype: str, rows: int, columns: int, permuted: bool = False) -> Matrix:
        name = f"random {rng.integers(1 << 30)}"
        order = rng.permutation(rows) if permuted else None
        return Matrix(random_tensor(dtype, rows, columns, rng, name), order)

    def biased(one: Matrix) -> Matrix:
        bias = rng.normal(size=one.rows).astype(np.float32) if shape.biased else None
        return replace(one, bias=bias)

    def norm(size: int, scale: float = 1.0) -> Norm:
        weight = (scale * rng.uniform(0.5, 1.5, size)).astype(np.float32)
        if not shape.layer_norms:
            return Norm(weight)
        return Norm(weight, (scale * rng.normal(size=size)).astype(np.float32))

    def rotation(number: int, base: float) -> Rotation | None:
        dimensions = shape.rotated[number] if shape.rotated else shape.head_dim // 2 * 2
        if shape.layer_norms or dimensions is None:
            return None
        half = dimensions // 2
        frequencies = (base ** (-np.arange(half) / half)).astype(np.float32)
        return Rotation(dimensions, frequencies, shape.stretch)

    def layer(number: int, window: int | None) -> DecoderLayer:
        query, key, value, output, gate, up, down, _ = shape.dtypes
        queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        base = 10_000.0 if window is None else 1_000.0
        attention = Attention(
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            window_tokens=window,
            scale=0.25 / shape.head_dim,
            rotation=rotation(number, base),
            query=biased(matrix(query, queries, shape.hidden_size, permuted=True)),
            key=biased(matrix(key, keys, shape.hidden_size, permuted=True)),
            value=biased(matrix(value, keys, shape.hidden_size)),
            output=biased(matrix(output, shape.hidden_size, queries)),
            score_cap=shape.score_cap,
        )
        if shape.rich:
            attention = replace(
                attention, query_norm=norm(shape.head_dim, 4), key_norm=norm(shape.head_dim, 4)
            )
        if shape.norms_behind_only:
            attention = replace(attention, query_norm=norm(queries, 4), key_norm=norm(keys, 4))

        def expert() -> FeedForward:
            return FeedForward(
                shape.activation,
                gate=(
                    biased(matrix(gate, shape.feed_forward_size, shape.hidden_size))
                    if shape.gated
                    else None
                ),
                up=biased(matrix(up, shape.feed_forward_size, shape.hidden_size)),
                down=biased(matrix(down, shape.hidden_size, shape.feed_forward_size)),
            )

        network: FeedForward | Mixture
        if shape.num_experts:
            router = matrix("F32", shape.num_experts, shape.hidden_size)
            experts = tuple(expert() for _ in range(shape.num_experts))
            network = Mixture(router, experts, shape.num_used_experts, number % 2 == 0)
        else:
            network = expert()
        # Small norms keep every product's results near 1, whatever the width.
        inner = 0.3 / np.sqrt(shape.hidden_size)
        before, behind = not shape.norms_behind_only, shape.rich or shape.norms_behind_only
        return DecoderLayer(
            attention_norm=norm(shape.hidden_size, 3 * inner) if before else None,
            attention=attention,
            feed_forward_norm=norm(shape.hidden_size, 3 * inner) if before else None,
            feed_forward=network,
            attention_post_norm=norm(shape.hidden_size) if behind else None,
            feed_forward_post_norm=norm(shape.hidden_size) if behind else None,
        )

    head_dtype = shape.dtypes[-1]
    embedding = matrix(head_dtype, shape.vocabulary_size, shape.hidden_size)
    head = embedding
    if not shape.tied:
        head = matrix(head_dtype, shape.vocabulary_size, shape.hidden_size)
    elements = shape.num_kv_heads * shape.head_dim
    caches = tuple(
        LayerCache(
            LayerKind.FULL if window is None else LayerKind.SLIDING,
            elements,
            elements,
            window,
            shape.num_kv_heads,
        )
        for window in shape.windows
    )
    return Decoder(
        name="random",
        family="random",
        content_digest=bytes(32),
        context_tokens=2048,
        vocabulary_size=shape.vocabulary_size,
        hidden_size=shape.hidden_size,
        norm_epsilon=1e-5,
        embedding=embedding,
        embedding_scale=1.5 if shape.rich else 1.0,
        layers=tuple(layer(number, window) for number, window in enumerate(shape.windows)),
        final_norm=norm(shape.hidden_size, 1 / np.sqrt(shape.hidden_size)),
        head=head,
        shape=ModelShape("random", caches, 2048),
        position_embedding=matrix("F16", 2048, shape.hidden_size) if shape.layer_norms else None,
        logit_cap=shape.logit_cap,
    )


def in_float32(decoder: Decoder) -> Decoder:
    """The same decoder with every matrix dequantised."""
    done: dict[str, Matrix] = {}

    def plain(matrix: Matrix) -> Matrix:
        tensor = matrix.tensor
        if tensor.name not in done:
            values = dequantize(tensor)
            data = values.view(np.uint8).reshape(-1)
            done[tensor.name] = replace(
                matrix, tensor=Tensor(tensor.name, "F32", tensor.shape, data)
            )
        return done[tensor.name]

    def plain_network(network: FeedForward | Mixture) -> FeedForward | Mixture:
        if isinstance(network, Mixture):
            experts = tuple(map(plain_network, network.experts))
            return replace(network, router=plain(network.router), experts=experts)
        gate = network.gate and plain(network.gate)
        return replace(network, gate=gate, up=plain(network.up), down=plain(network.down))

    def layer(one: DecoderLayer) -> DecoderLayer:
        attention = one.attention
        return replace(
            one,
            attention=replace(
                attention,
                query=plain(attention.query),
                key=plain(attention.key),
                value=plain(attention.value),
                output=plain(attention.output),
            ),
            feed_forward=plain_network(one.feed_forward),
        )

    return replace(
        decoder,
        embedding=plain(decoder.embedding),
        head=plain(decoder.head),
        layers=tuple(map(layer, decoder.layers)),
    )
