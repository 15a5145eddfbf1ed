"""Exponentials and what is made of them, in float32 steps that a compiler turns into vectors.

Calls into a mathematics library would be one number at a time, and another for every system.
"""

import numpy as np

from kvikk.backends.cpu.jit import inner
from kvikk.backends.cpu.raw import bits_of_float, float_of_bits

_LOG2_E = np.float32(1.4426950408889634)


@inner
def exp2(x):
    """2 to the power of x, within 2.5e-7 of it; x is taken as -126 below that and 126 above.

    x = n + f with n whole: 2**f by its Taylor series on [-1/2, 1/2], 2**n added to the exponent.
    """
    x = min(max(x, np.float32(-126)), np.float32(126))
    # Adding 1.5 * 2**23 leaves the nearest whole number, halves to even, in the last bits.
    shifted = x + np.float32(12582912)
    fraction = x - (shifted - np.float32(12582912))
    power = np.float32(1.5403530e-4)
    power = power * fraction + np.float32(1.3333558e-3)
    power = power * fraction + np.float32(9.6181291e-3)
    power = power * fraction + np.float32(5.5504109e-2)
    power = power * fraction + np.float32(2.4022651e-1)
    power = power * fraction + np.float32(6.9314718e-1)
    power = power * fraction + np.float32(1)
    exponent = np.uint32(bits_of_float(shifted) << np.uint32(23))
    return float_of_bits(np.uint32(bits_of_float(power) + exponent))


@inner
def logistic(x):
    """1 / (1 + e**-x), within 2e-7."""
    return np.float32(1) / (np.float32(1) + exp2(-_LOG2_E * x))


@inner
def silu(x):
    """x times its logistic function."""
    return x * logistic(x)


@inner
def gelu_tanh(x):
    """GELU in its tanh form: (1 + tanh u) / 2 is the logistic function of 2u."""
    cube = np.float32(0.044715) * x * x * x
    return x * logistic(np.float32(2 * 0.7978845608028654) * (x + cube))


@inner
def gelu(x):
    """GELU, within 5e-7 of x: the error function after Abramowitz and Stegun, 7.1.26."""
    u = abs(x) * np.float32(0.7071067811865476)
    t = np.float32(1) / (np.float32(1) + np.float32(0.3275911) * u)
    series = np.float32(1.061405429) * t - np.float32(1.453152027)
    series = series * t + np.float32(1.421413741)
    series = series * t - np.float32(0.284496736)
    series = series * t + np.float32(0.254829592)
    # What lies beyond u on one side: (1 - erf u) / 2.
    beyond = np.float32(0.5) * series * t * exp2(-_LOG2_E * u * u)
    return x * (np.float32(1) - beyond if x > 0 else beyond)


@inner
def cap_row(values, cap):
    """Bend each of ``values`` to stay below ``cap``: cap * tanh(x / cap), within 3e-7 of the cap.

    tanh u = 2 * logistic(2u) - 1.
    """
    inverse = np.float32(2) / cap
    for i in range(len(values)):
        values[i] = cap * (np.float32(2) * logistic(values[i] * inverse) - np.float32(1))
