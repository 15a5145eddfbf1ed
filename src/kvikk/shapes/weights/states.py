"""Weights of layers that keep a state: Mamba, delta rules, lightning attention, convolutions."""

from collections.abc import Iterator

from kvikk.shapes import config as fields
from kvikk.shapes.config import Config
from kvikk.shapes.shape import StateCache
from kvikk.shapes.weights.records import Weight, linear, vector

_MAMBA1 = {"falcon_mamba", "jamba", "mamba", "zamba"}
_GATED_DELTA = {"olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "qwen4_exp_text"}
_KIMI_DELTA = {"bailing_hybrid", "kimi_linear"}
_LIGHTNING = {"bailing_moe_linear", "minimax", "minimax_m1", "minimax_text_01"}
_CONVOLUTION = {"lfm2", "lfm2_moe", "lfm3"}


def state_mixer(config: Config, state: StateCache, prefix: str) -> Iterator[Weight]:
    """Weights of the layer that keeps ``state``, by the configuration's family."""
    family = config["model_type"]
    if family in _MAMBA1:
        yield from _mamba1(config, state, prefix)
    elif family in _GATED_DELTA:
        yield from _gated_delta(config, prefix)
    elif family in _KIMI_DELTA:
        yield from _kimi_delta(config, prefix)
    elif family in _CONVOLUTION:
        yield from _short_convolution(config, prefix)
    elif family in _LIGHTNING:
        yield from _lightning(config, prefix)
    elif family == "recurrent_gemma":
        yield from _gated_recurrence(config, state, prefix)
    elif family == "rwkv":
        yield linear(
            f"{prefix}.attention", fields.hidden_size(config), state.recurrent_elements // 3 * 4
        )
    else:
        yield from _mamba2(config, state, prefix)


def _mamba1(config: Config, state: StateCache, prefix: str) -> Iterator[Weight]:
    hidden = fields.hidden_size(config)
    kernel = fields.read_int(config, "conv_kernel", "mamba_d_conv", default=4)
    size = fields.read_int(config, "state_size", "mamba_d_state", default=16)
    inner = state.recurrent_elements // size
    stated = config.get("time_step_rank") or config.get("mamba_dt_rank")
    rank = stated if type(stated) is int else -(-hidden // 16)
    yield linear(f"{prefix}.in_proj", hidden, 2 * inner)
    yield linear(f"{prefix}.x_proj", inner, rank + 2 * size)
    yield linear(f"{prefix}.dt_proj", rank, inner)
    yield linear(f"{prefix}.out_proj", inner, hidden)
    # The convolution and its bias, the step's bias, A and D.
    yield vector(f"{prefix}.others", inner * (kernel + 1 + 1 + size + 1))


def _mamba2(config: Config, state: StateCache, prefix: str) -> Iterator[Weight]:
    hidden = fields.hidden_size(config)
    kernel = fields.read_int(config, "mamba_d_conv", "conv_kernel", default=4)
    size = fields.read_int(config, "mamba_d_state", "ssm_state_size", "state_size")
    inner = state.recurrent_elements // size
    channels = inner + 2 * state.num_groups * size
    names = ("mamba_n_heads", "n_mamba_heads", "mamba_num_heads", "num_heads")
    heads = fields.read_int(config, *names, default=128)
    yield linear(f"{prefix}.in_proj", hidden, inner + channels + heads)
    yield linear(f"{prefix}.out_proj", inner, hidden)
    # The convolution and its bias; A, D and the step's bias; the norm.
    yield vector(f"{prefix}.others", channels * (kernel + 1) + 3 * heads + inner)


def _gated_delta(config: Config, prefix: str) -> Iterator[Weight]:
    hidden = fields.hidden_size(config)
    keys = fields.read_int(config, "linear_num_key_heads") * fields.read_int(
        config, "linear_key_head_dim"
    )
    heads = fields.read_int(config, "linear_num_value_heads")
    value_dim = fields.read_int(config, "linear_value_head_dim")
    kernel = fields.read_int(config, "linear_conv_kernel_dim", default=4)
    values = heads * value_dim
    yield linear(f"{prefix}.in_proj_qkvz", hidden, 2 * keys + 2 * values)
    yield linear(f"{prefix}.in_proj_ba", hidden, 2 * heads)
    yield linear(f"{prefix}.out_proj", values, hidden)
    yield vector(f"{prefix}.others", (2 * keys + values) * kernel + 2 * heads + value_dim)


def _kimi_delta(config: Config, prefix: str) -> Iterator[Weight]:
    hidden = fields.hidden_size(config)
    linear_config = fields.part(config, "linear_attn_config") or config
    heads = fields.read_int(linear_config, "num_heads", "linear_num_heads", "num_attention_heads")
    head_dim = fields.read_int(linear_config, "head_dim", "linear_head_dim")
    size = heads * head_dim
    yield linear(f"{prefix}.qkv_proj", hidden, 3 * size)
    yield linear(f"{prefix}.o_proj", size, hidden)
    yield linear(f"{prefix}.b_proj", hidden, heads)
    yield linear(f"{prefix}.f_a_proj", hidden, head_dim)
    yield linear(f"{prefix}.f_b_proj", head_dim, size)
    if linear_config.get("use_full_rank_gate") is True:
        yield linear(f"{prefix}.g_proj", hidden, size)
    else:
        yield linear(f"{prefix}.g_a_proj", hidden, head_dim)
        yield linear(f"{prefix}.g_b_proj", head_dim, size)
    yield vector(f"{prefix}.others", 3 * size * 4 + size + heads + head_dim)


def _short_convolution(config: Config, prefix: str) -> Iterator[Weight]:
    hidden, kernel = fields.hidden_size(config), fields.read_int(config, "conv_L_cache", default=3)
    channels = fields.read_int(config, "conv_dim", default=hidden)
    yield linear(f"{prefix}.in_proj", hidden, 3 * channels)
    yield linear(f"{prefix}.out_proj", channels, hidden)
    yield vector(f"{prefix}.conv", channels * kernel)


def _lightning(config: Config, prefix: str) -> Iterator[Weight]:
    hidden = fields.hidden_size(config)
    size = fields.num_heads(config) * fields.head_dim(config)
    yield linear(f"{prefix}.qkv_proj", hidden, 3 * size)
    yield linear(f"{prefix}.output_gate", hidden, size)
    yield linear(f"{prefix}.out_proj", size, hidden)
    yield vector(f"{prefix}.norm", size)


def _gated_recurrence(config: Config, state: StateCache, prefix: str) -> Iterator[Weight]:
    hidden, width = fields.hidden_size(config), state.recurrent_elements
    block = width // fields.num_heads(config)
    kernel = fields.read_int(config, "conv1d_width", default=4)
    yield linear(f"{prefix}.linear_x", hidden, width)
    yield linear(f"{prefix}.linear_y", hidden, width)
    yield linear(f"{prefix}.linear_out", width, hidden)
    # Two gates in blocks, with biases; the decay; the convolution; biases of the three matrices.
    others = 2 * (width * block + width) + width + width * (kernel + 1) + 2 * width + hidden
    yield vector(f"{prefix}.others", others)
