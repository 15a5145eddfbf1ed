"""How a step's inputs lie for matrix products: int8 in groups of 32, tokens side by side.

Tokens are cut into panels of 16, and what is left into ones of 8, 4, 2, 1 as needed. A panel's
products share each load of a weight; the arithmetic of one token is the same in every panel. The
last panel may have lanes that are no token's: a wasted lane costs less than a panel more, which
has to unpack every weight again.

    integers    panel of M tokens at token p:  byte p * columns        [groups][M][32] int8
    scales                                     float 4 * p * groups    [groups][M][4] float32

The four scales of a lane belong to a group of 32 inputs of one token: its scale s, then s * Σ q
over all 32 integers q, over the first 16, over the last 16 (a format's minimum or zero point
multiplies such a sum). An input is s * q, s = largest / 127. They lie side by side, as threads that
make neighbouring tokens' inputs should not write to the same cache lines.

Where rounding to int8 costs too much an input takes two neighbouring lanes, the second for what the
first left over, 256 times as fine: s * q + s / 256 * r. The second lane's scales are those of the
integer 256 * q + r.
"""

import numpy as np

from kvikk.backends.cpu.jit import inner
from kvikk.backends.cpu.raw import float32s, int8s, int64s
from kvikk.backends.cpu.threads import share

PANEL_TOKENS = 16
LANE_SCALES = 4
LANE_SCALE_BYTES = 4 * LANE_SCALES
# Of a panel of 16; smaller ones have one at most.
MAX_UNUSED_LANES = 2


@inner
def panel_size(num_left):
    """Lanes of the next panel when ``num_left`` tokens are left.

    16, or the largest power of two that they fill: but for one lane of 4 or 8, but for two of 16.
    """
    size = PANEL_TOKENS
    while size - num_left > (size + 4) // 8:
        size //= 2
    return size


@inner
def panel_of(token, num_tokens):
    """The first token and the size of the panel that ``token`` lies in."""
    first = token // PANEL_TOKENS * PANEL_TOKENS
    size = panel_size(num_tokens - first)
    while token >= first + size:
        first += size
        size = panel_size(num_tokens - first)
    return first, size


@inner
def share_panels(num_tokens, thread, num_threads):
    """The tokens whose inputs one thread makes: first, end.

    Whole panels, where there is one for each thread: made together they take a fifth of the time.
    """
    first, end = share(num_tokens, thread, num_threads)
    if num_tokens < PANEL_TOKENS * num_threads:
        return first, end
    first = (first + PANEL_TOKENS // 2) // PANEL_TOKENS * PANEL_TOKENS
    if end < num_tokens:
        end = (end + PANEL_TOKENS // 2) // PANEL_TOKENS * PANEL_TOKENS
    return first, end


def quantize_plain(values, num_groups, integers, scales, panel_tokens):
    """One token's ``32 * num_groups`` float32 at ``values`` into its lane of a panel.

    ``integers`` and ``scales`` are the addresses of the lane's first group.
    """
    inputs = float32s(values, 32 * num_groups)
    for group in range(num_groups):
        largest = np.float32(0)
        for i in range(32):
            largest = max(largest, abs(inputs[32 * group + i]))
        inverse = np.float32(127) / largest if largest > 0 else np.float32(0)
        lane = int8s(integers + 32 * panel_tokens * group, 32)
        halves = np.zeros(2, np.int32)
        for i in range(32):
            integer = np.int8(np.rint(inputs[32 * group + i] * inverse))
            lane[i] = integer
            halves[i // 16] += integer
        scale = largest * np.float32(1 / 127)
        own = float32s(scales + LANE_SCALE_BYTES * panel_tokens * group, LANE_SCALES)
        own[0] = scale
        own[1] = scale * np.float32(halves[0] + halves[1])
        own[2] = scale * np.float32(halves[0])
        own[3] = scale * np.float32(halves[1])
    return np.int64(0)


_quantize_row = inner(quantize_plain)


def quantize_panel_plain(rows, num_groups, integers, scales):
    """Sixteen tokens, whose addresses lie at ``rows``, into their panel, which is to be full."""
    addresses = int64s(rows, PANEL_TOKENS)
    for token in range(PANEL_TOKENS):
        own = scales + LANE_SCALE_BYTES * token
        _quantize_row(addresses[token], num_groups, integers + 32 * token, own, PANEL_TOKENS)
    return np.int64(0)


@inner
def quantize_rest(values, num_groups, integers, scales, panel_tokens):
    """What is left of a token's values behind its integers, to the lane after it."""
    for group in range(num_groups):
        inputs = float32s(values + 128 * group, 32)
        lanes = int8s(integers + 32 * panel_tokens * group, 64)
        own = float32s(scales + LANE_SCALE_BYTES * panel_tokens * group, 2 * LANE_SCALES)
        scale = own[0]
        inverse = np.float32(256) / scale if scale > np.float32(1e-35) else np.float32(0)
        first, last = np.int32(0), np.int32(0)
        for i in range(32):
            left = np.rint((inputs[i] - scale * np.float32(lanes[i])) * inverse)
            integer = np.int8(min(max(left, np.float32(-127)), np.float32(127)))
            lanes[32 + i] = integer
            if i < 16:
                first += integer
            else:
                last += integer
        fine = scale * np.float32(1 / 256)
        own[LANE_SCALES] = fine
        sums = (first + last, first, last)
        for i in range(1, LANE_SCALES):
            own[LANE_SCALES + i] = own[i] + fine * np.float32(sums[i - 1])


def sum_of_squares_plain(values, num_sixteens, result):
    """Σ of squares of ``16 * num_sixteens`` float32, to the float32 at ``result``.

    Sixteen running sums, one a lane, then folded: lanes 8 apart, 4, 2, 1.
    """
    inputs = float32s(values, 16 * num_sixteens)
    lanes = np.zeros(16, np.float32)
    for start in range(0, len(inputs), 16):
        for lane in range(16):
            lanes[lane] += inputs[start + lane] * inputs[start + lane]
    distance = 8
    while distance > 0:
        for lane in range(distance):
            lanes[lane] += lanes[lane + distance]
        distance //= 2
    float32s(result, 1)[0] = lanes[0]
    return np.int64(0)
