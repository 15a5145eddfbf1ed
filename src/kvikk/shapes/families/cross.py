"""Decoders that also attend to an encoder: its keys and values are computed once and stay.

Elements per encoder token and layer: 2 · heads · head size, beside the decoder's own.
"""

from dataclasses import replace

from kvikk.shapes import config as fields
from kvikk.shapes.config import Config
from kvikk.shapes.families.layers import Family, Layers, full, kv_layer
from kvikk.shapes.families.windows import WINDOWS
from kvikk.shapes.shape import CrossCache, LayerCache, LayerKind

# Llama 3.2 Vision: patches and one class token a tile, and tiles, of the published models.
_MLLAMA_IMAGE_SIZE, _MLLAMA_PATCH_SIZE, _MLLAMA_TILES = 560, 14, 4


def t5(config: Config) -> Layers:
    """T5: ``num_heads`` heads of ``d_kv`` in both kinds of attention; any length of input."""
    layers = fields.read_int(
        config, "num_decoder_layers", "num_layers", "num_hidden_layers", largest=10_000
    )
    layer = kv_layer(fields.read_int(config, "num_heads"), fields.head_dim(config))
    tokens = fields.read_int(config, "n_positions", default=512)
    return (_with_cross(layer, tokens),) * layers


def bart(config: Config) -> Layers:
    """BART and its kin: heads of the decoder's own number in both kinds of attention."""
    tokens = fields.read_int(
        config, "max_source_positions", "max_position_embeddings", default=1024
    )
    return _decoder(config, tokens)


def whisper(config: Config) -> Layers:
    """Whisper: the encoder gives ``max_source_positions`` vectors, half a frame each."""
    return _decoder(config, fields.read_int(config, "max_source_positions", default=1500))


def _decoder(config: Config, encoder_tokens: int) -> Layers:
    layers = fields.read_int(config, "decoder_layers", "num_hidden_layers", largest=10_000)
    heads = fields.read_int(config, "decoder_attention_heads", "num_attention_heads")
    head_dim = fields.head_dim({**config, "num_attention_heads": heads})
    return (_with_cross(kv_layer(heads, head_dim), encoder_tokens),) * layers


def mllama(config: Config) -> Layers:
    """Llama 3.2 Vision: the layers of ``cross_attention_layers`` see the image and nothing else.

    An image is up to ``max_num_tiles`` tiles, each of its patches and one class token.
    """
    vision = fields.part(config, "vision_config")
    image = fields.read_int(vision, "image_size", default=_MLLAMA_IMAGE_SIZE)
    patch = fields.read_int(vision, "patch_size", default=_MLLAMA_PATCH_SIZE)
    tiles = fields.read_int(vision, "max_num_tiles", default=_MLLAMA_TILES)
    tokens = tiles * ((image // patch) ** 2 + 1)
    crossing = set(fields.indices(config, "cross_attention_layers"))
    plain = full(config)
    return tuple(
        _cross_only(plain(index), tokens) if index in crossing else plain(index)
        for index in range(fields.num_layers(config))
    )


def with_cross_of(decoder: Family) -> Family:
    """T5Gemma: a decoder of another family, whose layers also attend to an encoder of its length.

    Cross-attention has the decoder's own heads.
    """

    def family(config: Config) -> Layers:
        tokens = fields.context_tokens(config)
        return tuple(_with_cross(layer, tokens) for layer in decoder(config))

    return family


def _with_cross(layer: LayerCache, encoder_tokens: int) -> LayerCache:
    cross = CrossCache(layer.key_elements, layer.value_elements, encoder_tokens)
    return replace(layer, cross=cross)


def _cross_only(layer: LayerCache, encoder_tokens: int) -> LayerCache:
    crossing = _with_cross(layer, encoder_tokens)
    return LayerCache(LayerKind.CROSS, kv_heads=layer.kv_heads, cross=crossing.cross)


# fmt: off
_T5 = ("byt5", "longt5", "mt5", "pop2piano", "switch_transformers", "t5", "udop", "umt5")
_BART = (
    "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "fsmt", "led", "m2m_100", "marian",
    "mbart", "mvp", "nllb-moe", "pegasus", "pegasus_x", "plbart",
)
# fmt: on

CROSS: dict[str, Family] = {
    **dict.fromkeys(_T5, t5),
    **dict.fromkeys(_BART, bart),
    "mllama_text_model": mllama,
    "speech_to_text": whisper,
    "t5_gemma_module": with_cross_of(WINDOWS["gemma2"]),
    "t5gemma2_decoder": with_cross_of(WINDOWS["gemma3_text"]),
    "whisper": whisper,
}
