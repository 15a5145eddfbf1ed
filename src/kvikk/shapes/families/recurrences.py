"""Models without attention whose layers keep a matrix for each head: RWKV and xLSTM.

RWKV's layers also keep the last token's vector for each of their two halves. From version 5 on the
state is heads · size · size; version 4 keeps three vectors. Sizes are those of the models' own code
and of llama.cpp's ``n_embd_r`` and ``n_embd_s``.
"""

from kvikk.shapes import config as fields
from kvikk.shapes.config import Config
from kvikk.shapes.families.layers import Family, Layers
from kvikk.shapes.families.states import states_only
from kvikk.shapes.shape import StateCache

# xLSTM rounds the widths of queries, keys and values up to this.
_XLSTM_MULTIPLE = 64


def rwkv4_state(config: Config) -> StateCache:
    """Two shifted inputs, and a numerator, a denominator and a maximum in float32."""
    hidden = fields.hidden_size(config)
    inner = fields.read_int(config, "attention_hidden_size", default=hidden)
    return StateCache(2 * hidden, 3 * inner)


def rwkv_state(config: Config) -> StateCache:
    """Versions 5 to 7: two shifted inputs, and a matrix of ``head_size`` squared a head."""
    hidden = fields.hidden_size(config)
    inner = fields.read_int(config, "attention_hidden_size", default=hidden)
    head_size = fields.read_int(config, "head_size", "head_dim", default=64, largest=65_536)
    shifts = fields.read_int(config, "token_shift_count", default=2, largest=16)
    return StateCache(shifts * hidden, inner * head_size)


def xlstm(config: Config) -> Layers:
    """A matrix of key by value size a head, a normaliser as long as a key, and a maximum."""
    heads = fields.num_heads(config)
    width = fields.read_int(config, "hidden_size", "embedding_dim")
    keys = _rounded(width * fields.read_float(config, "qk_dim_factor", 0.5))
    values = _rounded(width * fields.read_float(config, "v_dim_factor", 1.0))
    elements = keys * (values // heads) + keys + heads
    dtype = fields.model_dtype({"dtype": config.get("inference_state_dtype", "float32")})
    state = StateCache(recurrent_elements=elements, recurrent_dtype=dtype)
    layers = fields.read_int(config, "num_hidden_layers", "num_blocks", largest=10_000)
    return states_only(lambda config: state)({**config, "num_hidden_layers": layers})


def _rounded(width: float) -> int:
    return int(-(-width // _XLSTM_MULTIPLE)) * _XLSTM_MULTIPLE


RECURRENCES: dict[str, Family] = {
    "rwkv": states_only(rwkv4_state),
    "rwkv5": states_only(rwkv_state),
    "rwkv6": states_only(rwkv_state),
    "rwkv6qwen2": states_only(rwkv_state),
    "rwkv7": states_only(rwkv_state),
    "xlstm": xlstm,
}
