"""``save_folder.py FROM.gguf FOLDER``: the model in bfloat16, as transformers and vLLM load it."""

import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


def save_folder(source: Path, folder: str) -> None:
    """Dequantise, and forget that it was quantised."""
    gguf = {"gguf_file": source.name}
    read = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.bfloat16, **gguf)
    config = {key: value for key, value in read.config.to_dict().items() if "quant" not in key}
    plain = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.bfloat16)
    plain.load_state_dict(read.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, **gguf).save_pretrained(folder)


if __name__ == "__main__":
    save_folder(Path(sys.argv[1]), sys.argv[2])
