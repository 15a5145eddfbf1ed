"""Low-rank adapters with random weights: saved by PEFT, or made up for a decoder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
import transformers

from kvikk.models.adapter import Adapter, LowRank, matrices_by_role
from kvikk.models.decoder import Decoder


def save_adapter(
    model: transformers.PreTrainedModel,
    folder: Path,
    *,
    seed: int = 0,
    size: float = 0.1,
    **options: Any,
) -> peft.PeftModel:
    """Wrap ``model`` in an adapter of random weights and save that to ``folder``."""
    options = {"r": 4, "lora_alpha": 6, "task_type": "CAUSAL_LM"} | options
    adapted = peft.get_peft_model(model, peft.LoraConfig(**options))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * size)
    adapted.save_pretrained(str(folder))
    return adapted.eval()


def random_adapter(
    decoder: Decoder,
    seed: int,
    rank: int = 3,
    roles: Sequence[str] = ("query", "key", "value", "output", "gate", "up", "down"),
) -> Adapter:
    """An adapter that changes logits by about 1."""
    rng = np.random.default_rng(seed)
    deltas = {}
    for number, layer in enumerate(decoder.layers):
        for role, matrix in matrices_by_role(layer).items():
            if role in roles:
                a = rng.normal(size=(rank, matrix.columns)).astype(np.float32)
                b = rng.normal(size=(matrix.rows, rank)).astype(np.float32)
                deltas[number, role] = LowRank(a, b, scale=0.5 / rank)
    return Adapter(seed.to_bytes(32, "little"), deltas)
