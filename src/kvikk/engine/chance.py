"""The chance in sampling, by counter: a request's i-th token depends on its seed and i alone.

So an answer does not depend on who else was in the batch, on how the prompt was cut, or on whether
the request was preempted on the way: there is no generator whose state could be ahead or behind.
"""

import secrets

_MASK = 2**64 - 1
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15


def draw_seed() -> int:
    """A seed for a request that did not bring one."""
    return secrets.randbits(64)


def uniform(seed: int, index: int) -> float:
    """The ``index``-th number of the stream named ``seed``, in [0, 1), in steps of 2**-53.

    SplitMix64 (Steele, Lea and Flood, 2014), whose i-th output is a function of i. The seed is
    mixed first, else streams of seeds that differ by the generator's increment would overlap.
    """
    state = _mix(seed & _MASK) + (index + 1) * _GOLDEN_GAMMA
    return (_mix(state & _MASK) >> 11) * 2.0**-53


def choice_seed(seed: int, choice: int) -> int:
    """The seed of a request's ``choice``-th answer; the first one's is the request's own."""
    return seed if choice == 0 else _mix(_mix(seed & _MASK) ^ choice)


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
