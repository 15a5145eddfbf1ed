"""SmolLM2's tokeniser and template over two small layers of random weights.

For what does not depend on what a model says: a prompt of thousands of tokens takes milliseconds,
on the reference backend too, where nothing has to be compiled.
"""

from pathlib import Path

import gguf
import numpy as np

LAYERS, HIDDEN, FEED_FORWARD, HEADS, KV_HEADS, HEAD_DIM = 2, 128, 256, 2, 1, 64
CONTEXT_TOKENS = 16_384


def write_tiny_model(tokenizer_of: Path, path: Path) -> None:
    """A GGUF file with the tokeniser of another."""
    reader = gguf.GGUFReader(tokenizer_of)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(100_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    for name, part in reader.fields.items():
        if name.startswith("tokenizer."):
            kind = part.types[0]
            inner = part.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, part.contents(), kind, inner)
    vocabulary = len(reader.fields["tokenizer.ggml.tokens"].data)
    writer.add_vocab_size(vocabulary)
    random = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, (0.05 * random.standard_normal(shape)).astype(np.float32))

    add("token_embd.weight", vocabulary, HIDDEN)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(HIDDEN, np.float32))
        for name, rows, columns in (
            ("attn_q", HEADS * HEAD_DIM, HIDDEN),
            ("attn_k", KV_HEADS * HEAD_DIM, HIDDEN),
            ("attn_v", KV_HEADS * HEAD_DIM, HIDDEN),
            ("attn_output", HIDDEN, HEADS * HEAD_DIM),
            ("ffn_gate", FEED_FORWARD, HIDDEN),
            ("ffn_up", FEED_FORWARD, HIDDEN),
            ("ffn_down", HIDDEN, FEED_FORWARD),
        ):
            add(f"blk.{layer}.{name}.weight", rows, columns)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
