"""All weights of a model: embeddings, layers, head, and what looks at images."""

from collections.abc import Iterator

from kvikk.errors import ModelError
from kvikk.shapes import config as fields
from kvikk.shapes.config import Config
from kvikk.shapes.families import FAMILIES, normalise
from kvikk.shapes.shape import LayerCache, LayerKind
from kvikk.shapes.weights.attention import attention, deepseek_v4_attention, latent_attention
from kvikk.shapes.weights.encoders import encoder_decoder, vision
from kvikk.shapes.weights.feed_forward import feed_forward
from kvikk.shapes.weights.records import Weight, linear, vector
from kvikk.shapes.weights.states import state_mixer

# fmt: off
# Families whose matrices all have biases, and whose norms have two vectors.
_BIASED = {
    "biogpt", "bloom", "gpt2", "gpt_bigcode", "gpt_neox", "openai-gpt", "opt", "phi", "phi-msft",
    "starcoder2", "xglm",
}
# One matrix as embedding and as head, unless the configuration says otherwise.
_TIED = {
    "bloom", "cohere", "cohere2", "falcon", "falcon_mamba", "gemma", "gemma2", "gemma3_text",
    "gemma3n_text", "gemma4_text", "gpt2", "gpt_bigcode", "lfm2", "mamba", "mpt", "openai-gpt",
    "opt", "recurrent_gemma", "smollm3", "starcoder2", "zamba", "zamba2",
}
# Norms as long as the hidden size in a layer, where there are not two.
_NORMS_A_LAYER = {
    "cohere": 1, "cohere2": 1, "falcon_mamba": 1, "gemma2": 4, "gemma3_text": 4,
    "gemma3n_text": 4, "gemma4_text": 4, "glm4": 4, "gptj": 1, "mamba": 1, "mamba2": 1,
    "nemotron_h": 1, "phi": 1, "phi-msft": 1,
}
# Positions that are looked up rather than computed.
_LEARNT_POSITIONS = {"biogpt", "gpt2", "gpt_bigcode", "openai-gpt", "opt"}
# Families whose weights are not counted: what they are made of is not that of any other.
_NOT_COUNTED = {
    "hymba", "plamo2", "rwkv5", "rwkv6", "rwkv6qwen2", "rwkv7", "t5_gemma_module",
    "t5gemma2_decoder", "xlstm", "zaya",
}
# fmt: on

_NO_FEED_FORWARD = {"falcon_mamba", "mamba", "mamba2"}
_SHARED_ATTENTION = {"zamba", "zamba2"}


def model_weights(config: Config, assume: str | None = None) -> tuple[Weight, ...]:
    """All weights that a ``config.json`` describes; those of an image encoder by its usual form.

    Raises ModelError as ``read_shape`` does, for a family that is not counted, and if the
    configuration lacks what sizes depend on.
    """
    text = normalise(config, assume)
    family = fields.model_type(text)
    if family in _NOT_COUNTED:
        raise ModelError(f"the weights of {family} are not counted from the configuration")
    layers = FAMILIES[family](text)
    if layers and layers[0].cross is not None:
        return tuple(encoder_decoder(text, len(layers)))
    weights = [*_ends(text)]
    for index, layer in enumerate(layers):
        weights += _layer(text, layer, index)
    if family in _SHARED_ATTENTION:
        weights += _shared_attention(text, layers)
    if family in _BIASED:
        weights += [
            vector(f"{weight.name}.bias", weight.outputs, weight.count)
            for weight in weights
            if weight.outputs and weight.name != "lm_head"
        ]
    weights += _per_layer_embeddings(text, len(layers))
    return (*weights, *vision(text))


def _ends(config: Config) -> Iterator[Weight]:
    """Embedding, positions, the last norm, head."""
    hidden, vocabulary = fields.hidden_size(config), fields.read_int(config, "vocab_size")
    width = fields.read_int(config, "word_embed_proj_dim", default=hidden)  # OPT's smallest
    yield vector("model.embed_tokens", vocabulary * width)
    if config["model_type"] in _LEARNT_POSITIONS:
        offset = 2 if config["model_type"] in ("biogpt", "opt") else 0
        yield vector("model.embed_positions", (fields.context_tokens(config) + offset) * hidden)
    yield vector("model.norm", hidden * (2 if config["model_type"] in _BIASED else 1))
    tied = config.get("tie_word_embeddings")
    if not (config["model_type"] in _TIED if tied is None else tied):
        yield linear("lm_head", width, vocabulary)


def _layer(config: Config, layer: LayerCache, index: int) -> Iterator[Weight]:
    family, prefix = config["model_type"], f"model.layers.{index}"
    yield from _mixers(config, layer, index, prefix)
    is_mixer_only = family == "nemotron_h" and layer.kind != LayerKind.NONE
    if family not in _NO_FEED_FORWARD | _SHARED_ATTENTION and not is_mixer_only:
        yield from feed_forward(_feed_forward_of(config, index), index, f"{prefix}.mlp")
    norms = _NORMS_A_LAYER.get(family, 2)
    vectors = 2 if family in _BIASED else 1
    yield vector(f"{prefix}.norms", norms * vectors * fields.hidden_size(config))


def _mixers(config: Config, layer: LayerCache, index: int, prefix: str) -> Iterator[Weight]:
    family, name = config["model_type"], f"{prefix}.self_attn"
    if family == "deepseek_v4":
        yield from deepseek_v4_attention(config, layer, name)
    elif layer.kind == LayerKind.LATENT:
        yield from latent_attention(config, layer, name)
    elif (layer.key_elements or layer.cross) and family not in _SHARED_ATTENTION:
        yield from attention(config, layer, index, name)
    if layer.state is not None:
        yield from state_mixer(config, layer.state, f"{prefix}.mixer")


def _feed_forward_of(config: Config, index: int) -> Config:
    """Nemotron-H names its dense layers and those with experts; others need no help."""
    if config["model_type"] != "nemotron_h":
        return config
    listed = config.get("layer_types") or config.get("layers_block_type")
    letters = str(config.get("hybrid_override_pattern")).replace("|", "")
    name = listed[index] if isinstance(listed, list) else letters[index]
    return config if name in ("E", "moe") else {**config, "n_routed_experts": 0}


def _shared_attention(config: Config, layers: tuple[LayerCache, ...]) -> Iterator[Weight]:
    """Zamba's attention and feed-forward, shared by all layers that have them, each with an inlet.

    Adapters that some of its models have are small and not counted.
    """
    hybrids = [index for index, layer in enumerate(layers) if layer.key_elements]
    hidden = fields.hidden_size(config)
    for block in range(min(fields.read_int(config, "num_mem_blocks", default=1), len(hybrids))):
        index = hybrids[block]
        yield from attention(config, layers[index], index, f"model.shared.{block}.self_attn")
        yield from feed_forward(config, index, f"model.shared.{block}.mlp")
    yield linear("model.shared.linear", hidden, hidden, len(hybrids))


def _per_layer_embeddings(config: Config, num_layers: int) -> Iterator[Weight]:
    """Gemma 3n and 4: an embedding for each layer, and what brings it into the layer."""
    width = fields.read_count(config, "hidden_size_per_layer_input", 0)
    if not width:
        return
    hidden = fields.hidden_size(config)
    vocabulary = fields.read_int(config, "vocab_size_per_layer_input", "vocab_size")
    yield vector("model.embed_tokens_per_layer", vocabulary * num_layers * width)
    yield linear("model.per_layer_model_projection", hidden, num_layers * width)
    yield linear("model.layers.0.per_layer_input_gate", hidden, width, 2 * num_layers)
