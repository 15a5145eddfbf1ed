"""The models of the comparison, each in the forms that the peers take.

    python benchmarks/models.py [NAME …]     make whatever form is missing

``gguf`` is the file that we and llama.cpp read. ``q4_0`` is the same, requantised by llama.cpp to
the 4-bit form it is fastest with. ``folder`` holds the same weights in bfloat16 for vLLM and
transformers. What has to be made is kept below ``$KVIKK_PEERS/models``.
"""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from kvikk.files.packages import gemma3_270m, smollm2
from kvikk.shapes.quantities import format_bytes
from places import MODELS, SCRIPTS, python_of

FORMS = ("gguf", "q4_0", "folder")
# The dimensions of Llama 3.2 1B, with SmolLM2's vocabulary: 1.07 billion weights.
LAYERS, HIDDEN_SIZE, FEED_FORWARD_SIZE, HEADS, KV_HEADS, HEAD_DIM = 16, 2048, 8192, 32, 8, 64
CONTEXT_TOKENS = 8192


def llama_1b() -> Path:
    """A GGUF file of the shape of Llama 3.2 1B with random weights in Q4_1, made when missing."""
    path = MODELS / "llama-1b.gguf"
    if not path.exists():
        _make(path, _write_llama_1b)
    return path


# Every model by its name in the tables.
MODELS_OF_THE_COMPARISON: Mapping[str, Callable[[], Path]] = {
    "smollm2": smollm2,
    "gemma3-270m": gemma3_270m,
    "llama-1b": llama_1b,
}


def form_of(model: str, form: str) -> Path:
    """The file or folder with ``model`` in ``form``, made when missing.

    Exits with a line if the peer that makes it is not installed.
    """
    source = MODELS_OF_THE_COMPARISON[model]()
    if form == "gguf":
        return source
    if form == "q4_0":
        path = MODELS / f"{model}-q4_0.gguf"
        command = _command("llama_cpp", "requantise.py")
    else:
        path = MODELS / f"{model}-bf16"
        command = _command("transformers", "save_folder.py")
    if not path.exists():
        _make(path, lambda target: _run([*command, source, target]))
    return path


def _command(environment: str, script: str) -> list[Path]:
    python = python_of(environment)
    if python is None:
        sys.exit(f"{environment} is not installed; run benchmarks/peers/install.sh {environment}")
    return [python, SCRIPTS / script]


def _run(command: list[Path]) -> None:
    """Let a peer make something; what it prints is shown if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}\n{command[1]} failed")


def _make(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside the place and move it there, so that what broke off is never taken for whole."""
    print(f"making {path}", file=sys.stderr)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"unfinished-{path.name}")
    write(unfinished)
    unfinished.rename(path)


def _write_llama_1b(path: Path) -> None:
    reader = gguf.GGUFReader(smollm2())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Llama 1B, random weights")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(HIDDEN_SIZE)
    writer.add_feed_forward_length(FEED_FORWARD_SIZE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(500_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    for name, part in reader.fields.items():
        if name.startswith("tokenizer."):
            kind = part.types[0]
            inner = part.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, part.contents(), kind, inner)
    vocabulary_size = len(reader.fields["tokenizer.ggml.tokens"].data)
    writer.add_vocab_size(vocabulary_size)

    rng = np.random.default_rng(0)
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    writer.add_tensor("token_embd.weight", *_q8_0(rng, vocabulary_size, HIDDEN_SIZE))
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN_SIZE, np.float32))
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(HIDDEN_SIZE, np.float32))
        for name, rows, columns in (
            ("attn_q", queries, HIDDEN_SIZE),
            ("attn_k", keys, HIDDEN_SIZE),
            ("attn_v", keys, HIDDEN_SIZE),
            ("attn_output", HIDDEN_SIZE, queries),
            ("ffn_gate", FEED_FORWARD_SIZE, HIDDEN_SIZE),
            ("ffn_up", FEED_FORWARD_SIZE, HIDDEN_SIZE),
            ("ffn_down", HIDDEN_SIZE, FEED_FORWARD_SIZE),
        ):
            writer.add_tensor(f"blk.{layer}.{name}.weight", *_q4_1(rng, rows, columns))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# What makes weights of a standard deviation of 0.02, as models are initialised, from integers that
# are all equally likely.
_Q4_SCALE = 0.02 / np.sqrt((16**2 - 1) / 12)
_Q8_SCALE = 0.02 / np.sqrt((255**2 - 1) / 12)
Blocks = NDArray[np.uint8]


def _q4_1(
    rng: np.random.Generator, rows: int, columns: int
) -> tuple[Blocks, None, gguf.GGMLQuantizationType]:
    """Blocks of 32 weights: scale, minimum, nibbles; ``add_tensor``'s arguments behind the name."""
    blocks = rng.integers(0, 256, (rows, columns // 32, 20), np.uint8)
    halves = blocks.view(np.float16)
    halves[..., 0] = _Q4_SCALE
    halves[..., 1] = -7.5 * _Q4_SCALE
    return blocks.reshape(rows, -1), None, gguf.GGMLQuantizationType.Q4_1


def _q8_0(
    rng: np.random.Generator, rows: int, columns: int
) -> tuple[Blocks, None, gguf.GGMLQuantizationType]:
    """Blocks of 32 weights: scale, bytes."""
    blocks = rng.integers(0, 256, (rows, columns // 32, 34), np.uint8)
    blocks.view(np.float16)[..., 0] = _Q8_SCALE
    return blocks.reshape(rows, -1), None, gguf.GGMLQuantizationType.Q8_0


def main() -> None:
    """Make the forms of the models that are named, or of all."""
    for model in sys.argv[1:] or MODELS_OF_THE_COMPARISON:
        if model not in MODELS_OF_THE_COMPARISON:
            sys.exit(f"unknown model {model}; known are {', '.join(MODELS_OF_THE_COMPARISON)}")
        for form in FORMS:
            path = form_of(model, form)
            files = path.rglob("*") if path.is_dir() else [path]
            size = sum(file.stat().st_size for file in files)
            print(f"{model}, {form}: {path}, {format_bytes(size)}")


if __name__ == "__main__":
    main()
