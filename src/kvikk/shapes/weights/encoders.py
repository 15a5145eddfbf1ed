"""Weights of encoder-decoders, and of the encoders that look at images."""

from collections.abc import Iterator

from kvikk.shapes import config as fields
from kvikk.shapes.config import Config
from kvikk.shapes.weights.feed_forward import is_gated
from kvikk.shapes.weights.records import Weight, linear, vector

_T5_BUCKETS = 32


def encoder_decoder(config: Config, decoder_layers: int) -> Iterator[Weight]:
    """T5, BART, Whisper and their kin: two stacks over one embedding, attention twice in one."""
    hidden = fields.hidden_size(config)
    yield vector("shared", fields.read_int(config, "vocab_size") * hidden)
    encoder_layers = fields.read_int(config, "encoder_layers", "num_layers", "num_hidden_layers")
    stacks = ("encoder", encoder_layers, 1), ("decoder", decoder_layers, 2)
    for name, layers, attentions in stacks:
        heads = _heads_size(config, name)
        yield linear(f"{name}.attention", hidden, heads, 4 * attentions * layers)
        inner = fields.read_int(config, f"{name}_ffn_dim", "d_ff", "intermediate_size")
        yield linear(f"{name}.mlp", hidden, inner, (3 if is_gated(config) else 2) * layers)
        if "d_kv" in config:
            norms = layers * (attentions + 1) + 1
            yield vector(f"{name}.norms", norms * hidden + _T5_BUCKETS * _heads(config))
        else:
            yield vector(f"{name}.others", _biases(config, name, layers, attentions, heads, inner))
    if not config.get("tie_word_embeddings", True):
        yield linear("lm_head", hidden, fields.read_int(config, "vocab_size"))


def _heads(config: Config) -> int:
    return fields.num_heads(config)


def _heads_size(config: Config, stack: str) -> int:
    """All heads of one stack together."""
    if "d_kv" in config:
        return _heads(config) * fields.head_dim(config)
    return fields.hidden_size(config)


def _biases(
    config: Config, stack: str, layers: int, attentions: int, heads: int, inner: int
) -> int:
    """BART's and Whisper's biases, norms of two vectors, and positions; Whisper's convolutions."""
    hidden = fields.hidden_size(config)
    whisper = config["model_type"] == "whisper"
    of_attention = (3 if whisper else 4) * heads  # Whisper's keys have no bias
    layer = attentions * of_attention + inner + hidden + 2 * (attentions + 1) * hidden
    ends = 2 * hidden
    if whisper:
        names = {"encoder": "max_source_positions", "decoder": "max_target_positions"}
        ends += fields.read_int(config, names[stack], default=1500) * hidden
        if stack == "encoder":
            mels = fields.read_int(config, "num_mel_bins", default=80)
            ends += 3 * (mels + hidden) * hidden + 2 * hidden
    else:
        ends += (fields.context_tokens(config) + 2) * hidden
    return layers * layer + ends


def vision(config: Config) -> Iterator[Weight]:
    """The image encoder, counted as a vision transformer; adapters to the text are left out.

    Nothing where ``vision_config`` states no width and depth.
    """
    part = fields.part(config, "vision_config")
    widths, depths = ("hidden_size", "embed_dim"), ("depth", "num_hidden_layers", "num_layers")
    if all(part.get(name) is None for name in widths) or all(
        part.get(name) is None for name in depths
    ):
        return
    width = fields.read_int(part, "embed_dim", "hidden_size")
    depth = fields.read_int(part, *depths, largest=10_000)
    inner = fields.read_int(part, "intermediate_size", default=4 * width)
    patch = fields.read_int(part, "patch_size", default=14)
    frames = fields.read_int(part, "temporal_patch_size", default=1)
    layer = 4 * width * width + 2 * width * inner
    yield vector("vision_tower", depth * layer + 3 * patch * patch * frames * width)
