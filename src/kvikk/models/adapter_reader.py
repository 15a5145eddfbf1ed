"""From an adapter's files to what it adds to a decoder, checked against that decoder.

PEFT names a tensor by the path of its module in the model as transformers builds it, wherever the
base model's weights come from:

    base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight
                     └────────── module ───────────┘

A decoder's rows of queries and keys are in that model's order, also where a GGUF file stores them
in another, so B's rows are taken as they lie.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from kvikk.errors import ModelError
from kvikk.files.adapters import WEIGHTS_NAME, AdapterSource
from kvikk.files.quantization import dequantize
from kvikk.files.tensors import Tensor
from kvikk.models.adapter import Adapter, LowRank, Role, matrices_by_role
from kvikk.models.adapter_options import LoraOptions, read_options
from kvikk.models.decoder import Decoder

# A module's path within its layer, and the roles of the matrices that lie in it one after another.
_Modules = Mapping[str, tuple[Role, ...]]
_LLAMA: _Modules = {
    "self_attn.q_proj": ("query",),
    "self_attn.k_proj": ("key",),
    "self_attn.v_proj": ("value",),
    "self_attn.o_proj": ("output",),
    "mlp.gate_proj": ("gate",),
    "mlp.up_proj": ("up",),
    "mlp.down_proj": ("down",),
}
_PHI3: _Modules = {
    "self_attn.qkv_proj": ("query", "key", "value"),
    "self_attn.o_proj": ("output",),
    "mlp.gate_up_proj": ("gate", "up"),
    "mlp.down_proj": ("down",),
}
_GPT2: _Modules = {
    "attn.c_attn": ("query", "key", "value"),
    "attn.c_proj": ("output",),
    "mlp.c_fc": ("up",),
    "mlp.c_proj": ("down",),
}
# Families whose modules are not those of a Llama.
_MODULES: Mapping[str, _Modules] = {"phi3": _PHI3, "gpt2": _GPT2}

_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_MODULE = re.compile(
    r"(?:model\.|transformer\.|language_model\.model\.|model\.language_model\.)?"
    r"(?:layers|h)\.(\d{1,5})\.(.+)"
)

# Of float16, in which many are trained. What is larger is damage, and products of it overflow.
_LARGEST = 65_504


def load_adapter(source: AdapterSource, decoder: Decoder) -> Adapter:
    """The adapter in ``source``, for ``decoder``.

    Raises ModelError if its files are damaged, it is of a kind that cannot be run, or it was made
    for another model.
    """
    options = read_options(source.path, source.config)
    weights = source.path / WEIGHTS_NAME
    pairs = _pairs(weights, source.tensors)
    deltas: dict[tuple[int, Role], LowRank] = {}
    for module, (a, b) in pairs.items():
        found = _deltas(weights, module, a, b, options, decoder)
        if not deltas.keys().isdisjoint(found):
            raise ModelError(f"{weights}: adapts the module {module!r:.120} under two names")
        deltas |= found
    if not deltas:
        raise ModelError(f"{weights}: has no tensors; expected pairs of lora_A and lora_B")
    return Adapter(source.content_digest(), MappingProxyType(deltas))


def _pairs(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """A and B of each module, by its path."""
    halves: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        found = _TENSOR.fullmatch(name)
        if found is None:
            raise ModelError(
                f"{path}: has the tensor {name!r:.120}, which is no matrix A or B of plain LoRA"
            )
        halves.setdefault(found[1], {})[found[2]] = tensor
    for module, pair in halves.items():
        if len(pair) != 2:
            lacking = "B" if "A" in pair else "A"
            raise ModelError(f"{path}: lacks lora_{lacking} of the module {module!r:.120}")
    return {module: (pair["A"], pair["B"]) for module, pair in halves.items()}


def _deltas(
    path: Path, module: str, a: Tensor, b: Tensor, options: LoraOptions, decoder: Decoder
) -> dict[tuple[int, Role], LowRank]:
    """What one module's pair adds to each of the matrices that lie in it."""
    modules = _MODULES.get(decoder.family, _LLAMA)
    found = _MODULE.fullmatch(module)
    roles = None if found is None else modules.get(found[2])
    if found is None or roles is None:
        raise ModelError(
            f"{path}: adapts the module {module!r:.120}; of {decoder.name} those that can be "
            f"adapted are {', '.join(name.rpartition('.')[2] for name in modules)}"
        )
    layer = int(found[1])
    if layer >= len(decoder.layers):
        raise ModelError(
            f"{path}: adapts layer {layer}; {decoder.name} has {len(decoder.layers)}, so the "
            "adapter was made for another model"
        )
    matrices = matrices_by_role(decoder.layers[layer])
    if any(role not in matrices for role in roles):
        raise ModelError(
            f"{path}: adapts the module {module!r:.120}, which {decoder.name} does not have"
        )
    rows = [matrices[role].rows for role in roles]
    rank, columns = options.rank_of(module), matrices[roles[0]].columns
    for name, tensor, expected in (("A", a, (rank, columns)), ("B", b, (sum(rows), rank))):
        if tensor.shape != expected:
            raise ModelError(
                f"{path}: lora_{name} of {module!r:.120} has shape {tensor.shape}, expected "
                f"{expected} by {decoder.name} and the configuration's rank"
            )
    scale = options.scale_of(module)
    down, up = _numbers(path, a), _numbers(path, b)
    starts = np.cumsum([0, *rows])
    return {
        (layer, role): LowRank(down, up[starts[index] : starts[index + 1]], scale)
        for index, role in enumerate(roles)
    }


def _numbers(path: Path, tensor: Tensor) -> NDArray[np.float32]:
    values = dequantize(tensor)
    if not (np.abs(values) <= _LARGEST).all():
        raise ModelError(
            f"{path}: tensor {tensor.name!r:.160} holds NaN, infinity, or a number beyond "
            f"{_LARGEST:,}; an adapter's are small"
        )
    return values
