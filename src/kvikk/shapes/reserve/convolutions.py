"""How far back a model's short convolutions look: what some engines keep more of than others."""

from kvikk.shapes.config import Config, part, read_int, text_config

_KERNEL_KEYS = (
    "linear_conv_kernel_dim",
    "mamba_d_conv",
    "conv_kernel",
    "conv_kernel_size",
    "short_conv_kernel_size",
    "conv_L_cache",
    "conv1d_width",
)
_USUAL_KERNEL = 4


def convolution_tokens(config: Config) -> int:
    """Tokens before the present one that a convolution sees: its kernel less one."""
    text = text_config(config)
    linear = part(text, "linear_attn_config")
    usual = read_int(linear, *_KERNEL_KEYS, default=_USUAL_KERNEL)
    return max(read_int(text, *_KERNEL_KEYS, default=usual) - 1, 1)
