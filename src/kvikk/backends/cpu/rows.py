"""What is done to one token's row of numbers between the matrix products."""

import numpy as np

from kvikk.backends.cpu.curves import gelu, gelu_tanh, silu
from kvikk.backends.cpu.jit import inner, pointer_call
from kvikk.backends.cpu.panels import LANE_SCALE_BYTES, PANEL_TOKENS, panel_of, quantize_rest
from kvikk.backends.cpu.raw import (
    copy_words,
    float32s,
    float_of_bits,
    float_of_half,
    int32s,
    int64s,
    uint8s,
    uint16s,
)
from kvikk.backends.cpu.records import (
    EMBEDDING_F16,
    EMBEDDING_F32,
    EMBEDDING_INTEGERS,
    GELU_TANH,
    SILU,
)

_quantize = pointer_call(5)
_quantize_panel = pointer_call(4)
_sum_of_squares = pointer_call(3)


@inner
def norm_row(model, source, norm, count, width, out):
    """Norm ``count`` numbers, in rows padded with zeros to ``width``, a multiple of 32.

    At ``norm`` are the weights, padded too, and behind those of a LayerNorm its bias.
    """
    if model.are_layer_norms != 0:
        _take_out_mean(source, count, width, out)
        source = out
    result = np.empty(1, np.float32)
    _sum_of_squares(model.sum_of_squares, (source, width // 16, result.ctypes.data))
    inverse = np.float32(1 / np.sqrt(np.float64(result[0]) / count + model.epsilon))
    inputs, weights = float32s(source, width), float32s(norm, width)
    outputs = float32s(out, width)
    for i in range(width):
        outputs[i] = inputs[i] * inverse * weights[i]
    if model.are_layer_norms != 0:
        add_row(norm + 4 * width, out, width)


@inner
def _take_out_mean(source, count, width, out):
    """A row less its mean. Sixteen running sums, then those one after another."""
    inputs, outputs = float32s(source, width), float32s(out, width)
    lanes = np.zeros(16, np.float32)
    for start in range(0, width, 16):
        for lane in range(16):
            lanes[lane] += inputs[start + lane]
    total = np.float64(0)
    for lane in range(16):
        total += lanes[lane]
    mean = np.float32(total / count)
    for i in range(width):
        outputs[i] = inputs[i] - mean if i < count else np.float32(0)


@inner
def add_row(source, target, width):
    """``target += source``."""
    addend, total = float32s(source, width), float32s(target, width)
    for i in range(width):
        total[i] += addend[i]


@inner
def sum_rows(source, other, width, out):
    """``out = source + other``; ``out`` may be ``source``."""
    first, second, total = float32s(source, width), float32s(other, width), float32s(out, width)
    for i in range(width):
        total[i] = first[i] + second[i]


@inner
def put_inputs(model, phase, row, token, num_tokens, own, panel_rows, to):
    """One token's row to where a phase's products read their inputs.

    They go ``to`` integers and scales, as ``panels`` says, or to dense rows. The caller puts tokens
    own[0] … own[1] - 1, one after another. A panel that is full and wholly among them is quantised
    when its last row is there: till then rows have to stay, and ``panel_rows`` has their addresses.

    In a phase of two parts a token has two lanes. The head is such a phase: its rounding goes
    straight into the logits, it made a third of the whole model's error, and while weights come
    from memory the second lane costs nothing.
    """
    integers, scales, dense = to
    width = phase.width
    if phase.integers != 0:
        place, groups = token * phase.parts, width // 32
        first, size = panel_of(place, num_tokens * phase.parts)
        integers, scales = integers + first * width, scales + first * groups * LANE_SCALE_BYTES
        lane, end = place - first, min(own[1], num_tokens)
        is_whole = size == PANEL_TOKENS and own[0] <= first and first + size <= end
        if is_whole and phase.parts == 1:
            int64s(panel_rows, PANEL_TOKENS)[lane] = row
            if lane == PANEL_TOKENS - 1:
                _quantize_panel(model.quantize_panel, (panel_rows, groups, integers, scales))
        else:
            integers, scales = integers + lane * 32, scales + lane * LANE_SCALE_BYTES
            _quantize(model.quantize, (row, groups, integers, scales, size))
            if phase.parts == 2:
                quantize_rest(row, groups, integers, scales, size)
    if phase.dense != 0:
        copy_words(row, dense + token * width * 4, width)


@inner
def activate_row(layer, gates, ups, out):
    """``activation(gate) * up`` where no product did it; ``ups`` 0 leaves out the factor.

    The biases of gate and up lie one after the other.
    """
    width = layer.feed_forward_size
    if layer.feed_forward_bias != 0:
        sum_rows(gates, layer.feed_forward_bias, width, out)
        gates = out
    inputs, outputs = float32s(gates, width), float32s(out, width)
    if layer.activation == SILU:
        for i in range(width):
            outputs[i] = silu(inputs[i])
    elif layer.activation == GELU_TANH:
        for i in range(width):
            outputs[i] = gelu_tanh(inputs[i])
    else:
        for i in range(width):
            outputs[i] = gelu(inputs[i])
    if ups == 0:
        return
    factors = float32s(ups, width)
    if layer.feed_forward_bias == 0:
        for i in range(width):
            outputs[i] *= factors[i]
    else:
        bias = float32s(layer.feed_forward_bias + 4 * width, width)
        for i in range(width):
            outputs[i] *= factors[i] + bias[i]


@inner
def turn_angles(model, rotation, token):
    """Cosines, then sines, of one token's angles, for all layers that rotate this way.

    Angles are float32, as models were trained with (see ``Rotation``), and their cosines exact.
    """
    count = rotation.num_angles
    position = np.float32(int32s(model.positions, model.num_tokens)[token])
    frequencies = float32s(rotation.inverse_frequencies, count)
    out = float32s(rotation.rotations + token * 2 * count * 4, 2 * count)
    for i in range(count):
        angle = np.float64(np.float32(position * frequencies[i]))
        out[i] = np.float32(np.cos(angle) * rotation.stretch)
        out[count + i] = np.float32(np.sin(angle) * rotation.stretch)


@inner
def embed_row(model, token_id, position, out):
    """A token's row of the embedding matrix, from its tiles, scaled; plus its position's row."""
    groups = model.embedding_groups
    scale = np.float32(model.embedding_scale)
    lane = token_id % 16
    outputs = float32s(out, 32 * groups)
    address = model.embedding + token_id // 16 * groups * model.embedding_bytes
    for group in range(groups):
        tile = address + group * model.embedding_bytes
        if model.embedding_kind == EMBEDDING_INTEGERS:
            _embed_integers(model, tile, lane, scale, outputs[32 * group : 32 * group + 32])
            continue
        for column in range(32):
            place = column * 16 + lane
            if model.embedding_kind == EMBEDDING_F32:
                value = float32s(tile, 512)[place]
            elif model.embedding_kind == EMBEDDING_F16:
                value = float_of_half(uint16s(tile, 512)[place])
            else:
                value = float_of_bits(
                    np.uint32(np.uint32(uint16s(tile, 512)[place]) << np.uint32(16))
                )
            outputs[32 * group + column] = value * scale
    if model.position_embedding != 0:
        width = model.hidden_width
        add_row(model.position_embedding + position * width * 4, out, width)


@inner
def tile_integer(data, bits, word, place):
    """The integer at byte ``place`` of a tile's word; see ``tiles``."""
    if bits == 8:
        return np.int32(data[64 * word + place])
    integer = np.int32((data[64 * (word % 4) + place] >> (4 * (word // 4))) & 15)
    if bits == 5:
        integer += np.int32(((data[256 + place] >> word) & 1) << 4)
    elif bits == 6:
        upper = data[256 + 64 * (word // 4) + place] >> (2 * (word % 4))
        integer += np.int32((upper & 3) << 4)
    return integer


@inner
def _embed_integers(model, tile, lane, scale, outputs):
    """One lane of an integer tile. See ``tiles`` for the layout."""
    bits = model.embedding_bits
    data = uint8s(tile, model.embedding_bytes)
    halves = uint16s(tile + 64 * bits, (model.embedding_bytes - 64 * bits) // 2)
    for column in range(32):
        integer = tile_integer(data, bits, column // 4, 4 * lane + column % 4)
        part = 16 * (column // 16) if model.embedding_scales == 2 else 0
        row_scale = float_of_half(halves[part + lane])
        if model.embedding_minimum != 0:
            value = row_scale * np.float32(integer)
            value += float_of_half(halves[16 * model.embedding_scales + part + lane])
        else:
            value = row_scale * np.float32(integer - (1 << (bits - 1)))
        outputs[column] = value * scale
