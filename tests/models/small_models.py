"""Small random models, made and saved by transformers."""

import torch
import transformers

LLAMA = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
GEMMA3 = {
    **LLAMA,
    "num_hidden_layers": 7,
    "head_dim": 32,
    "sliding_window": 8,
    "query_pre_attn_scalar": 24,
    "tie_word_embeddings": True,
}
GPT2 = {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}


def random_model(config: transformers.PreTrainedConfig) -> transformers.PreTrainedModel:
    # The eager form of attention is the one that knows of caps on scores.
    return randomise(
        transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="eager"
        )
    )


def randomise(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """Make all weights random, norms too, so that none may be overlooked."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2)
    return model.eval()
