"""Models of published shapes with random weights: ``random:gpt2`` needs no download.

What a model costs is decided by its shape alone; its answers are noise, the same on every machine.
A folder like any other, ``config.json``, ``model.safetensors`` and a tokeniser, is written once.

The tokeniser has a made-up word for every token beside the 256 bytes, so that a text of them is as
many tokens as words, answers included; any other text falls apart into bytes.
"""

import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from itertools import count, islice, product
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from kvikk.errors import ModelError
from kvikk.files.cache_folder import cache_folder

PREFIX = "random:"
# Part of the folder's name: a new way to fill it is a new folder.
_REVISION = 1
_DEVIATION = 0.02  # of the weights, as both families are initialised

_LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "bfloat16",
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "n_ctx": 1024,
        "n_embd": 768,
        "n_head": 12,
        "n_layer": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
        "torch_dtype": "float32",
    },
    "smollm2-135m": {
        **_LLAMA,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "vocab_size": 49152,
    },
    "llama-3.2-1b": {
        **_LLAMA,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
        },
        "vocab_size": 128256,
    },
}


def random_model(name: str) -> Path:
    """The folder of ``random:SHAPE``, written now if it is not there yet.

    Raises ModelError for an unknown shape, or where the folder cannot be written.
    """
    shape = name.removeprefix(PREFIX)
    if shape not in SHAPES:
        known = ", ".join(PREFIX + known for known in SHAPES)
        raise ModelError(f"no random model {name!r}; there are {known}")
    folder = cache_folder() / "random" / f"{shape}-{_REVISION}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent))
        try:
            write_random_model(temporary, SHAPES[shape])
            temporary.chmod(0o755)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        if not folder.is_dir():  # else another process was first
            raise ModelError(f"{folder}: cannot be written: {error.strerror}") from None
    return folder


def tensor_sizes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and sizes of all tensors of a GPT-2 or a Llama of this configuration."""
    return dict(_gpt2(config) if config["model_type"] == "gpt2" else _llama(config))


def write_random_model(folder: Path, config: Mapping[str, Any]) -> None:
    """Fill ``folder`` with a model of ``config``, which has at least 256 tokens."""
    vocabulary_size = config["vocab_size"]
    _write_json(folder / "config.json", config)
    _write_json(folder / "tokenizer.json", _tokenizer(vocabulary_size))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": "{% for message in messages %}{{ message.role }}: "
            "{{ message.content }}\n{% endfor %}assistant:",
        },
    )
    with (folder / "model.safetensors").open("wb") as file:
        _write_tensors(file, tensor_sizes(config), is_bf16=config["torch_dtype"] == "bfloat16")


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")


def _write_tensors(file: BinaryIO, sizes: Mapping[str, tuple[int, ...]], *, is_bf16: bool) -> None:
    """A safetensors file: norms 1, biases 0, all else normal. One tensor in memory at a time."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, size in sizes.items():
        stop = start + math.prod(size) * (2 if is_bf16 else 4)
        dtype = "BF16" if is_bf16 else "F32"
        header[name] = {"dtype": dtype, "shape": list(size), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    generator = np.random.Generator(np.random.PCG64(0))
    for name, size in sizes.items():
        values: NDArray[np.float32]
        if len(size) == 2:
            values = generator.standard_normal(size, np.float32) * np.float32(_DEVIATION)
        else:
            values = np.full(size, 0 if name.endswith("bias") else 1, np.float32)
        if is_bf16:
            # The upper half of a float32's bits; what is random need not be rounded.
            values.view(np.uint16).reshape(-1)[1::2].tofile(file)
        else:
            values.tofile(file)


def _gpt2(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and sizes of the tensors; matrices lie ``[inputs, outputs]``."""
    hidden_size = config["n_embd"]
    yield "wte.weight", (config["vocab_size"], hidden_size)
    yield "wpe.weight", (config["n_positions"], hidden_size)
    for layer in range(config["n_layer"]):
        for name, inputs, outputs in (
            ("attn.c_attn", hidden_size, 3 * hidden_size),
            ("attn.c_proj", hidden_size, hidden_size),
            ("mlp.c_fc", hidden_size, 4 * hidden_size),
            ("mlp.c_proj", 4 * hidden_size, hidden_size),
        ):
            yield f"h.{layer}.{name}.weight", (inputs, outputs)
            yield f"h.{layer}.{name}.bias", (outputs,)
        for name in ("ln_1", "ln_2"):
            yield f"h.{layer}.{name}.weight", (hidden_size,)
            yield f"h.{layer}.{name}.bias", (hidden_size,)
    yield "ln_f.weight", (hidden_size,)
    yield "ln_f.bias", (hidden_size,)


def _llama(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and sizes of the tensors; matrices lie ``[outputs, inputs]``."""
    hidden_size, inner_size = config["hidden_size"], config["intermediate_size"]
    query_size = config["num_attention_heads"] * config["head_dim"]
    key_size = config["num_key_value_heads"] * config["head_dim"]
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden_size)
    for layer in range(config["num_hidden_layers"]):
        for name, outputs, inputs in (
            ("self_attn.q_proj", query_size, hidden_size),
            ("self_attn.k_proj", key_size, hidden_size),
            ("self_attn.v_proj", key_size, hidden_size),
            ("self_attn.o_proj", hidden_size, query_size),
            ("mlp.gate_proj", inner_size, hidden_size),
            ("mlp.up_proj", inner_size, hidden_size),
            ("mlp.down_proj", hidden_size, inner_size),
        ):
            yield f"model.layers.{layer}.{name}.weight", (outputs, inputs)
        yield f"model.layers.{layer}.input_layernorm.weight", (hidden_size,)
        yield f"model.layers.{layer}.post_attention_layernorm.weight", (hidden_size,)
    yield "model.norm.weight", (hidden_size,)


def _tokenizer(vocabulary_size: int) -> dict[str, Any]:
    """A ``tokenizer.json``: byte-level, without merges, whole words first."""
    spellings = [*_byte_symbols(), *islice(_words(), vocabulary_size - 256)]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": {spelling: token_id for token_id, spelling in enumerate(spellings)},
            "merges": [],
        },
    }


def _byte_symbols() -> Iterator[str]:
    """The character that stands for each byte in byte-level vocabularies, GPT-2's table."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = count(256)
    for byte in range(256):
        yield chr(byte) if byte in printable else chr(next(others))


def _words() -> Iterator[str]:
    """ " baba", " babe", … with the space in front, as byte-level vocabularies spell it."""
    syllables = ["".join(pair) for pair in product("bdfgklmnprstvz", "aeiou")]
    for length in count(2):
        for parts in product(syllables, repeat=length):
            yield "Ġ" + "".join(parts)
