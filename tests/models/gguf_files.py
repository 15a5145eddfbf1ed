"""Small models in GGUF, written with the gguf package as llama.cpp's converter writes them."""

from pathlib import Path

import gguf
import torch
import transformers

# What configurations call the numbers of the file's header.
_NUMBERS = {
    "num_hidden_layers": "add_block_count",
    "max_position_embeddings": "add_context_length",
    "hidden_size": "add_embedding_length",
    "intermediate_size": "add_feed_forward_length",
    "num_attention_heads": "add_head_count",
    "num_key_value_heads": "add_head_count_kv",
    "head_dim": "add_key_length",
    "sliding_window": "add_sliding_window",
    "rms_norm_eps": "add_layer_norm_rms_eps",
    "layer_norm_epsilon": "add_layer_norm_eps",
    "vocab_size": "add_vocab_size",
    "attn_logit_softcapping": "add_attn_logit_softcapping",
    "final_logit_softcapping": "add_final_logit_softcapping",
    "attention_multiplier": "add_attention_scale",
    "embedding_multiplier": "add_embedding_scale",
    "residual_multiplier": "add_residual_scale",
    "logits_scaling": "add_logit_scale",
    "num_local_experts": "add_expert_count",
    "num_experts": "add_expert_count",
    "num_experts_per_tok": "add_expert_used_count",
    "moe_intermediate_size": "add_expert_feed_forward_length",
}
# Families whose query and key rows are stored with the halves of each head interleaved.
_INTERLEAVED = ("llama", "mixtral", "granite", "smollm3")


def write_gguf(
    model: transformers.PreTrainedModel, architecture: gguf.MODEL_ARCH, path: Path
) -> None:
    config = model.config
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    for name, add in _NUMBERS.items():
        if getattr(config, name, None) is not None:
            getattr(writer, add)(getattr(config, name))
    if config.model_type == "gpt2":
        writer.add_feed_forward_length(4 * config.n_embd)
    _write_rotation(model, writer)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    tied = config.tie_word_embeddings
    for name, weight in model.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        if ".mlp.experts." in name:
            for part, matrices in _experts(name, weight).items():
                layer = name.split(".")[2]
                writer.add_tensor(f"blk.{layer}.ffn_{part}_exps.weight", matrices.numpy())
            continue
        if name.endswith(".mlp.gate.weight"):
            name = name.replace("mlp.gate.weight", "block_sparse_moe.gate.weight")
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        writer.add_tensor(stored, _as_stored(name, weight, config).contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_rotation(model: transformers.PreTrainedModel, writer: gguf.GGUFWriter) -> None:
    parameters = getattr(model.config, "rope_parameters", None)
    if parameters is None:
        return
    if "full_attention" in parameters:
        writer.add_rope_freq_base(parameters["full_attention"]["rope_theta"])
        writer.add_rope_freq_base_swa(parameters["sliding_attention"]["rope_theta"])
        return
    theta, frequencies = parameters["rope_theta"], model.model.rotary_emb.inv_freq
    writer.add_rope_freq_base(theta)
    writer.add_rope_dimension_count(2 * len(frequencies))
    if parameters["rope_type"] == "llama3":
        plain = theta ** (-torch.arange(len(frequencies)) / len(frequencies))
        writer.add_tensor("rope_freqs.weight", (plain / frequencies).numpy())


def _experts(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """All experts' matrices of one kind, ``[experts, rows, columns]``."""
    if name.endswith("down_proj"):
        return {"down": weight.contiguous()}
    gate, up = weight.chunk(2, dim=1)
    return {"gate": gate.contiguous(), "up": up.contiguous()}


def _as_stored(
    name: str, weight: torch.Tensor, config: transformers.PreTrainedConfig
) -> torch.Tensor:
    if config.model_type.startswith("gemma") and name.endswith("norm.weight"):
        return weight + 1
    if config.model_type == "gpt2" and ".c_" in name and name.endswith(".weight"):
        return weight.T
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    for part, count in heads.items():
        if config.model_type in _INTERLEAVED and part in name:
            halves = weight.reshape(getattr(config, count), 2, -1, *weight.shape[1:])
            return halves.swapaxes(1, 2).reshape(weight.shape)
    return weight
