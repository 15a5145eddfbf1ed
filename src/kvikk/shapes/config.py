"""Reading a model's ``config.json``: fields by any of their names, and errors that name them."""

from collections.abc import Mapping
from reprlib import repr as shown
from typing import Any

from kvikk.errors import ModelError

Config = Mapping[str, Any]

# Where a model of several parts keeps the configuration of its language model, in any depth.
_TEXT_PARTS = (
    "text_config",
    "llm_config",
    "language_config",
    "text_model_config",
    "thinker_config",
    "transformer_layer_config",
    "decoder",
)
_DEEPEST_PART = 4

# What the whole model says also holds for its language model, if that says nothing else.
_INHERITED = (
    "dtype",
    "torch_dtype",
    "quantization_config",
    "tie_word_embeddings",
    "vision_config",
)

# Beyond these no model goes; a damaged file that says so must not fill the memory.
_LARGEST_INT = 2**31 - 1
_MOST_LAYERS = 10_000
_LARGEST_HEAD_DIM = 65_536
_UNLIMITED_CONTEXT_TOKENS = 4096
_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_SMALLEST_FLOAT, _LARGEST_FLOAT = 1e-30, 1e30


def text_config(config: Config) -> Config:
    """The part of ``config`` that describes the language model; often the whole of it.

    Raises ModelError if the part is not a mapping.
    """
    inherited: dict[str, Any] = {}
    for _ in range(_DEEPEST_PART):
        inherited |= {name: config[name] for name in _INHERITED if config.get(name) is not None}
        name = next((name for name in _TEXT_PARTS if _is_part(config, name)), None)
        if name is None:
            break
        inner = config[name]
        if not isinstance(inner, Mapping):
            raise ModelError(f"the model's configuration: {name} is not an object")
        config = {"model_type": config.get("model_type"), **inner}
    return {**inherited, **{name: value for name, value in config.items() if value is not None}}


def is_nested(config: Config) -> bool:
    """Whether the language model is only a part of what ``config`` describes."""
    return any(_is_part(config, name) for name in _TEXT_PARTS)


def _is_part(config: Config, name: str) -> bool:
    # "decoder" is also the name of a plain setting in older files.
    value = config.get(name)
    return value is not None and (name != "decoder" or isinstance(value, Mapping))


def part(config: object, name: str) -> Config:
    """The object ``name`` inside ``config``; empty if there is none.

    Raises ModelError if either is not an object.
    """
    inner = config.get(name) if isinstance(config, Mapping) else config
    if inner is None:
        return {}
    if not isinstance(inner, Mapping):
        raise ModelError(f"the model's configuration: {name} is not an object")
    return inner


def model_type(config: Config) -> str:
    """The family's name. Raises ModelError if there is none."""
    name = config.get("model_type")
    if not isinstance(name, str):
        raise ModelError("the model's configuration names no model_type")
    return name


def read_int(
    config: Config, *names: str, default: int | None = None, largest: int = _LARGEST_INT
) -> int:
    """The first of ``names`` that is set, an integer from 1 to ``largest``; else ``default``.

    Raises ModelError if none is set and there is no default, or if the value is something else.
    """
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise ModelError(
                f"the model's configuration: {name} is {shown(value)}, not a positive whole number"
            )
        if value > largest:
            raise ModelError(
                f"the model's configuration: {name} is {shown(value)}; "
                f"at most {largest} is possible"
            )
        return value
    if default is None:
        raise ModelError(f"the model's configuration lacks {' or '.join(names)}")
    return default


def read_float(config: Config, name: str, default: float | None = None) -> float:
    """The positive number ``name``; else ``default``. Raises ModelError as ``read_int`` does."""
    value = config.get(name)
    if value is None:
        if default is None:
            raise ModelError(f"the model's configuration lacks {name}")
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ModelError(
            f"the model's configuration: {name} is {shown(value)}, not a positive number"
        )
    if not _SMALLEST_FLOAT <= value <= _LARGEST_FLOAT:
        raise ModelError(
            f"the model's configuration: {name} is {shown(value)}; "
            f"{_SMALLEST_FLOAT} to {_LARGEST_FLOAT} is possible"
        )
    return float(value)


def read_count(config: Config, name: str, default: int | None = None) -> int:
    """A whole number that may be zero; else ``default``. Raises ModelError as ``read_int`` does."""
    return 0 if config.get(name) == 0 else read_int(config, name, default=default)


def flags(config: Config, name: str) -> list[bool] | None:
    """One truth value a layer, written as 0 and 1 or as booleans; None where there is no list.

    Raises ModelError for a list of another length or of other values.
    """
    values = config.get(name)
    if values is None or values == []:
        return None
    expected = num_layers(config)
    if not isinstance(values, list) or len(values) != expected:
        raise ModelError(f"the model's configuration: {name} does not list {expected} layers")
    if not all(value in (0, 1) for value in values):
        raise ModelError(f"the model's configuration: {name} holds other values than 0 and 1")
    return [bool(value) for value in values]


def indices(config: Config, name: str) -> list[int]:
    """A list of layers by their numbers; empty where there is none. Raises ModelError."""
    values = config.get(name)
    if values is None:
        return []
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise ModelError(f"the model's configuration: {name} is not a list of layer numbers")
    return values


def num_layers(config: Config) -> int:
    """Number of decoder layers."""
    return read_int(
        config, "num_hidden_layers", "n_layer", "n_layers", "num_layers", largest=_MOST_LAYERS
    )


def num_heads(config: Config, layer: int = 0) -> int:
    """Number of query heads, in ``layer`` where each layer has its own."""
    names = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
    return read_int(_of_layer(config, names, layer), *names)


def num_kv_heads(config: Config, layer: int = 0) -> int:
    """Number of key/value heads, in ``layer`` where each layer has its own; those may be none.

    Raises ModelError if the query heads do not divide among them.
    """
    names = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_attention_groups")
    own = _of_layer(config, names, layer)
    if own is not config and any(own.get(name) == 0 for name in names):
        return 0
    if not any(own.get(name) is not None for name in names):
        return num_heads(config, layer)
    heads = read_int(own, *names)
    queries = num_heads(config, layer)
    if queries % heads:
        raise ModelError(
            f"the model's configuration: {queries} query heads cannot share {heads} key/value heads"
        )
    return heads


def _of_layer(config: Config, names: tuple[str, ...], layer: int) -> Config:
    """``config`` with the values of one layer where ``names`` hold a list with one a layer."""
    lists = {name: config[name] for name in names if isinstance(config.get(name), list)}
    if not lists:
        return config
    expected = num_layers(config)
    for name, values in lists.items():
        if len(values) != expected:
            raise ModelError(f"the model's configuration: {name} does not list {expected} layers")
    return {**config, **{name: values[layer] for name, values in lists.items()}}


def hidden_size(config: Config) -> int:
    """Elements of a token's vector between layers."""
    return read_int(config, "hidden_size", "n_embd", "d_model", "n_embed", "model_dim")


def head_dim(config: Config) -> int:
    """Elements of one head. A stated size outranks hidden size over heads."""
    stated = ("head_dim", "d_kv", "attention_head_dim", "kv_channels")
    if any(config.get(name) is not None for name in stated):
        return read_int(config, *stated, largest=_LARGEST_HEAD_DIM)
    hidden, heads = hidden_size(config), num_heads(config)
    if hidden % heads:
        raise ModelError(
            f"the model's configuration: hidden_size {hidden} is not a multiple of {heads} heads, "
            "and no head_dim is stated"
        )
    return hidden // heads


def context_tokens(config: Config) -> int:
    """Positions the model was made for; 4,096 where the configuration sets no limit."""
    return read_int(
        config,
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "max_sequence_length",
        "seq_length",
        "max_context_length",
        "n_ctx",
        "model_max_length",
        "context_length",
        "max_target_positions",
        default=_UNLIMITED_CONTEXT_TOKENS,
    )


def layer_types(config: Config) -> list[str] | None:
    """The kind of each layer by name where the configuration lists them, else None.

    A list may go on with the draft layers of ``num_nextn_predict_layers``, which are left out.
    Raises ModelError if the list does not have one name a layer.
    """
    names = per_layer(config, "layer_types")
    return None if names is None else [str(name) for name in names]


def per_layer(config: Config, name: str) -> list[Any] | None:
    """A list of a value a layer, as ``layer_types`` describes it; None if there is none."""
    values = config.get(name)
    if values is None:
        return None
    expected = num_layers(config)
    drafts = read_count(config, "num_nextn_predict_layers", default=0)
    if not isinstance(values, list) or len(values) not in (expected, expected + drafts):
        raise ModelError(f"the model's configuration: {name} does not name {expected} layers")
    return values[:expected]


def model_dtype(config: Config) -> str:
    """The data type that the model is made for; bf16 where none is stated."""
    stated = config.get("dtype") or config.get("torch_dtype")
    return _DTYPES.get(str(stated).removeprefix("torch."), "bf16")


def kv_dtype(config: Config) -> str:
    """The data type of keys and values that the model's own quantisation asks for, else its own.

    As vLLM resolves the type ``auto``: modelopt's ``kv_cache_quant_algo``, or ``kv_cache_scheme``.
    """
    quantization = config.get("quantization_config")
    if isinstance(quantization, Mapping):
        algorithm = quantization.get("kv_cache_quant_algo")
        if isinstance(algorithm, str) and algorithm.lower() in ("fp8", "nvfp4"):
            return algorithm.lower()
        scheme = quantization.get("kv_cache_scheme")
        if isinstance(scheme, Mapping) and scheme.get("num_bits") == 8:
            return "fp8" if scheme.get("type") == "float" else "int8"
    return model_dtype(config)
