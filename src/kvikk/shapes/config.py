"""Reading a model's ``config.json``: fields by any of their names, and errors that name them."""

from collections.abc import Mapping
from typing import Any

from kvikk.errors import ModelError

Config = Mapping[str, Any]

# Where a model of several parts keeps the configuration of its language model.
_TEXT_PARTS = ("text_config", "llm_config", "language_config")

# Beyond these no model goes; a damaged file that says so must not fill the memory.
_LARGEST_INT = 2**31 - 1
_MOST_LAYERS = 10_000
_LARGEST_HEAD_DIM = 65_536
_SMALLEST_FLOAT, _LARGEST_FLOAT = 1e-30, 1e30


def text_config(config: Config) -> Config:
    """The part of ``config`` that describes the language model; often the whole of it.

    Raises ModelError if the part is not a mapping.
    """
    for part in _TEXT_PARTS:
        if part in config:
            if not isinstance(config[part], Mapping):
                raise ModelError(f"the model's configuration: {part} is not an object")
            inner: Config = config[part]
            return inner
    return config


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
                f"the model's configuration: {name} is {value!r}, not a positive whole number"
            )
        if value > largest:
            raise ModelError(
                f"the model's configuration: {name} is {value}; at most {largest} is possible"
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
        raise ModelError(f"the model's configuration: {name} is {value!r}, not a positive number")
    if not _SMALLEST_FLOAT <= value <= _LARGEST_FLOAT:
        raise ModelError(
            f"the model's configuration: {name} is {value}; "
            f"{_SMALLEST_FLOAT} to {_LARGEST_FLOAT} is possible"
        )
    return float(value)


def num_layers(config: Config) -> int:
    """Number of decoder layers."""
    return read_int(
        config, "num_hidden_layers", "n_layer", "n_layers", "num_layers", largest=_MOST_LAYERS
    )


def num_heads(config: Config) -> int:
    """Number of query heads."""
    return read_int(config, "num_attention_heads", "n_head", "n_heads", "num_heads")


def num_kv_heads(config: Config) -> int:
    """Number of key/value heads. Raises ModelError if the query heads do not divide among them."""
    queries = num_heads(config)
    heads = read_int(config, "num_key_value_heads", "num_kv_heads", "n_head_kv", default=queries)
    if queries % heads:
        raise ModelError(
            f"the model's configuration: {queries} query heads cannot share {heads} key/value heads"
        )
    return heads


def head_dim(config: Config) -> int:
    """Elements of one head. A stated ``head_dim`` outranks hidden size over heads."""
    if config.get("head_dim") is not None:
        return read_int(config, "head_dim", largest=_LARGEST_HEAD_DIM)
    hidden, heads = read_int(config, "hidden_size", "n_embd", "d_model"), num_heads(config)
    if hidden % heads:
        raise ModelError(
            f"the model's configuration: hidden_size {hidden} is not a multiple of {heads} heads, "
            "and no head_dim is stated"
        )
    return hidden // heads


def context_tokens(config: Config) -> int:
    """Positions the model was made for."""
    return read_int(config, "max_position_embeddings", "n_positions", "max_seq_len")


def layer_types(config: Config) -> list[str] | None:
    """The kind of each layer by name where the configuration lists them, else None.

    Raises ModelError if the list does not have one name a layer.
    """
    names = config.get("layer_types")
    if names is None:
        return None
    expected = num_layers(config)
    if not isinstance(names, list) or len(names) != expected:
        raise ModelError(f"the model's configuration: layer_types does not name {expected} layers")
    return [str(name) for name in names]
