"""Adapters for the tiny model, as PEFT writes them, and what its weights are with one merged in."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from kvikk.files.adapters import CONFIG_NAME, WEIGHTS_NAME
from kvikk.files.tensors import Tensor
from kvikk.models.adapter import matrices_by_role
from kvikk.models.decoder import Decoder, Matrix

MODULES = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
RANK, ALPHA = 4, 8


def write_adapter(folder: Path, decoder: Decoder, seed: int) -> Path:
    """An adapter of all matrices that changes what is said."""
    folder.mkdir()
    random = np.random.default_rng(seed)
    tensors = {}
    for number, layer in enumerate(decoder.layers):
        for role, matrix in matrices_by_role(layer).items():
            name = f"base_model.model.model.layers.{number}.{MODULES[role]}"
            for half, shape in (("A", (RANK, matrix.columns)), ("B", (matrix.rows, RANK))):
                values = 0.1 * random.standard_normal(shape)
                tensors[f"{name}.lora_{half}.weight"] = values.astype(np.float32)
    save_file(tensors, folder / WEIGHTS_NAME)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none"}
    (folder / CONFIG_NAME).write_text(json.dumps(config))
    return folder


def merged(decoder: Decoder, folder: Path) -> Decoder:
    """The decoder with W + B A alpha / rank in the place of each W, in float32."""
    tensors = load_file(folder / WEIGHTS_NAME)

    def merge(number: int, role: str, matrix: Matrix) -> Matrix:
        name = f"base_model.model.model.layers.{number}.{MODULES[role]}"
        product = tensors[f"{name}.lora_B.weight"] @ tensors[f"{name}.lora_A.weight"]
        values = matrix.float32() + np.float32(ALPHA / RANK) * product
        tensor = Tensor(name, "F32", values.shape, values.view(np.uint8).reshape(-1))
        return Matrix(tensor, bias=matrix.bias)

    layers = []
    for number, layer in enumerate(decoder.layers):
        new = {role: merge(number, role, one) for role, one in matrices_by_role(layer).items()}
        attention = {role: new[role] for role in ("query", "key", "value", "output")}
        network = {role: new[role] for role in ("gate", "up", "down")}
        layers.append(
            replace(
                layer,
                attention=replace(layer.attention, **attention),
                feed_forward=replace(layer.feed_forward, **network),
            )
        )
    return replace(decoder, layers=tuple(layers))
