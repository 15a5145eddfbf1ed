"""A model as transformers runs it, from the same file, read by transformers' own GGUF reader."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers.initialization import no_init_weights
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

Config = transformers.PreTrainedConfig


def load_gguf(path: Path, config: Config) -> transformers.PreTrainedModel:
    """The model in ``path``, float32.

    ``config`` saves reading the file twice; that it is what the file says is checked.
    """
    with no_init_weights():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    checkpoint = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    for key, value in checkpoint["config"].items():
        if hasattr(config, key) and key not in ("model_type", "_model_name_or_path"):
            assert getattr(config, key) == value, key
    missing, unexpected = model.load_state_dict(checkpoint["tensors"], strict=False, assign=True)
    assert not unexpected
    assert missing == ["lm_head.weight"]
    model.tie_weights()
    return model.eval()


def logits_of_last(
    model: transformers.PreTrainedModel, token_ids: Sequence[int], num_logits: int
) -> NDArray[np.float32]:
    """The logits at the last ``num_logits`` tokens, ``[num_logits, vocabulary]``, in one pass."""
    with torch.no_grad():
        output = model(torch.tensor([token_ids]), logits_to_keep=num_logits, use_cache=False)
    logits: NDArray[np.float32] = output.logits[0].numpy()
    return logits


def generate(
    model: transformers.PreTrainedModel, token_ids: Sequence[int], num_tokens: int
) -> list[int]:
    """``num_tokens`` more tokens by transformers' own greedy loop over its own cache."""
    model.generation_config.eos_token_id = None
    output = model.generate(
        torch.tensor([token_ids]), do_sample=False, max_new_tokens=num_tokens, pad_token_id=0
    )
    new_tokens: list[int] = output[0, len(token_ids) :].tolist()
    return new_tokens
