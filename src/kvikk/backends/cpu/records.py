"""The tables that a step walks along: where everything lies, as numbers.

Python fills them when a model is loaded; kernels read them. An integer is an address or a count; an
address of 0 means that the model has no such thing. Fields marked * change with every step.
"""

import numpy as np


def _record(integers: str, floats: str = "") -> np.dtype[np.void]:
    fields = [(name, np.int64) for name in integers.split()]
    return np.dtype([*fields, *((name, np.float64) for name in floats.split())])


# A matrix in tiles: outputs[token] = matrix @ inputs[token], ``chunk`` row tiles at a time.
# Meanwhile the keys and values of layer ``fetched_layer`` are fetched: of ``fetching_work``, all
# that is done before they are read (see ``fetching``). ``tops`` is where the largest results of
# each tile are noted, if they are: see ``rough``.
JOB = _record(
    "multiply weights groups row_tiles chunk dense outputs output_bytes fetched_layer fetching_work"
    " tops"
)

# The matrices that share their inputs, and which forms of the inputs they need;
# ``width`` inputs a token, a multiple of 32, in so many ``parts``.
PHASE = _record("first_job end_job width parts integers dense")
PHASES_PER_LAYER = 4
QUERY_KEY_VALUE, ATTENTION_OUTPUT, GATE_UP, DOWN = range(PHASES_PER_LAYER)

# One decoder layer. ``keys`` is the layer's first byte in block 0. Biases are those of a phase's
# matrices one after another. The norms of queries and keys are a head's, or of all heads together.
# ``activation`` is 0 where the product of gate and up has applied it; ``up_projections`` is set
# where the two are separate products; ``store_codes`` where keys and values are stored with scales.
LAYER = _record(
    "attention_norm query_norm key_norm all_queries_norm all_keys_norm attention_post_norm"
    " feed_forward_norm feed_forward_post_norm"
    " projection_bias output_bias feed_forward_bias down_bias"
    " num_heads num_kv_heads head_dim head_words group"
    " wide_rows wide_scores wide_values wide_join"
    " narrow_rows narrow_scores narrow_values narrow_join"
    " keys block_bytes head_bytes value_offset sub_block_bytes sub_blocks bfloats store_codes"
    " run_mixture mixture mixture_rows"
    " rotations rotation_bytes rotated"
    " feed_forward_size up_projections activation",
    "score_scale score_cap",
)
ACTIVATED, SILU, GELU_TANH, GELU = range(4)

# A layer's mixture of experts: a job and a phase for all experts' gates and ups, and for their
# downs; an expert's weights lie so many bytes behind those of the one before. The other fields are
# buffers, the same for all layers: see ``mixture``.
MIXTURE = _record(
    "num_experts num_used is_renormalised"
    " gate_up_job gate_up_phase gate_up_bytes gate_up_counter"
    " down_job down_phase down_bytes down_counter"
    " rows chosen shares starts active members places integers scales dense outputs"
)

# One cache group. ``items`` is where its attention work is listed, ``members`` the tokens of items:
# all tokens in order, then those that share an item though they are no neighbours. ``stretches``
# are what a layer's attention will read, and ``stretch_starts`` where a token's begin: see
# ``fetching``. An item has at most ``item_tokens``.
GROUP = _record(
    "window num_blocks block_bytes layer_bytes item_tokens items members stretches stretch_starts"
    " tables table_columns num_items num_members num_parts num_stretches"  # * this line
)

# One rotation: its angles' cosines, then sines, times ``stretch``, for each token of the step.
ROTATION = _record("inverse_frequencies num_angles rotations", "stretch")

# An adapter: what it adds in phase p are deltas ``starts[p] … starts[p + 1] - 1``. Each is matrices
# A and B as dense tiles, and where in a row of the phase's results B's tiles are added.
ADAPTER = _record("starts deltas")
DELTA = _record("a a_groups a_tiles b b_groups b_tiles outputs output_bytes tile_bytes")

# A layer's gate and up without what their product applies; see ``adapters``. No row tiles where it
# applies nothing.
BARE = _record(
    "multiply weights groups row_tiles chunk dense outputs output_bytes activation counter"
)

# What a step needs to know of the whole model, and where its buffers are. ``wanted_rows`` are those
# whose last hidden states are wanted, for logits or for themselves; where any is for itself,
# ``hidden_states`` is where those go, and two lists of places say for each wanted row which of them
# it is, and which of the rows with logits; -1 for none. ``adapters`` has an adapter's address a
# token, where any token has one; ``only_bare``: all of them change every layer's gate or up.
# ``is_rough``: of logits the largest is wanted, and ``rough`` finds it.
MODEL = _record(
    "num_layers num_groups num_rotations"
    " hidden_size hidden_width projection_width"
    " walk quantize quantize_panel sum_of_squares"
    " embedding embedding_bytes embedding_groups"
    " embedding_kind embedding_bits embedding_scales embedding_minimum"
    " position_embedding final_norm are_layer_norms"
    " hidden delta projections feed_forward feed_forward_bytes up_projections attention queries"
    " integers scales dense"
    " partials parts max_parts runs"
    " private private_bytes private_integers private_scales private_dense"
    " private_rows row_bytes private_panel private_queries private_attention private_fetches"
    " private_candidates choices max_choices vocabulary_size"
    " settle head_job tops bounds apart_integers apart_scales"
    " meeting counters num_counters counter_bytes"
    " bares multiply_dense bring_down add_up brought_down brought_down_bytes adapter_rows"
    " num_tokens num_runs num_wanted wanted_rows token_ids positions sequences"  # * this line
    " adapters only_bare is_rough num_logits"  # * and this
    " logits_places hidden_states hidden_places",
    "epsilon embedding_scale logit_cap",
)

EMBEDDING_INTEGERS, EMBEDDING_F32, EMBEDDING_F16, EMBEDDING_BF16 = range(4)

# Attention work: tokens ``members[ITEM_MEMBER …]`` against some pieces of a sequence's context; see
# ``items``. It is a part of these tokens' context, or the whole of it.
ITEM_FIELDS = 7
(
    ITEM_MEMBER,
    ITEM_TOKENS,
    ITEM_SEQUENCE,
    ITEM_PIECE,
    ITEM_PIECE_END,
    ITEM_PART,
    ITEM_WANTED,
) = range(ITEM_FIELDS)
WHOLE = -1
