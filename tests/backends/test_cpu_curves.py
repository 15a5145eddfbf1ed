"""Exponentials and activations in float32 against float64, within what they state."""

from math import erf

import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray

from kvikk.backends.cpu import curves

# Densely around zero, and out to where everything has long levelled off.
X = np.concatenate(
    [np.linspace(-20, 20, 100_001), [0.0, -0.0, -1e4, 1e4, -3e38, 3e38, 1e-30]]
).astype(np.float32)
EXACT = X.astype(np.float64)


def computed(curve: object, x: NDArray[np.float32] = X) -> NDArray[np.float32]:
    @njit(error_model="numpy")
    def every(inputs, outputs):  # type: ignore[no-untyped-def]
        for i in range(len(inputs)):
            outputs[i] = curve(inputs[i])  # type: ignore[operator]

    outputs = np.empty_like(x)
    every(x, outputs)
    return outputs


def test_powers_of_two_are_right_and_stay_finite() -> None:
    x = np.linspace(-126, 126, 100_001).astype(np.float32)
    np.testing.assert_allclose(computed(curves.exp2, x), np.exp2(x.astype(float)), rtol=2.5e-7)
    outside = np.array([-1e4, -127, 127, 1e30], np.float32)
    assert computed(curves.exp2, outside).tolist() == [2.0**-126, 2.0**-126, 2.0**126, 2.0**126]
    whole = np.arange(-126, 127, dtype=np.float32)
    np.testing.assert_array_equal(computed(curves.exp2, whole), np.exp2(whole))


@pytest.mark.parametrize(
    ("name", "exact", "tolerance"),
    [
        ("logistic", 1 / (1 + np.exp(-np.clip(EXACT, -700, 700))), 2e-7),
        ("silu", EXACT / (1 + np.exp(-np.clip(EXACT, -700, 700))), 2e-7),
        (
            "gelu_tanh",
            0.5 * EXACT * (1 + np.tanh(np.sqrt(2 / np.pi) * (EXACT + 0.044715 * EXACT**3))),
            2e-7,
        ),
        ("gelu", EXACT * (0.5 + 0.5 * np.vectorize(erf)(EXACT * np.sqrt(0.5))), 5e-7),
    ],
    ids=["logistic", "silu", "gelu_tanh", "gelu"],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_activations_are_right(name: str, exact: NDArray[np.float64], tolerance: float) -> None:
    errors = np.abs(computed(getattr(curves, name)) - exact) / np.maximum(1, np.abs(EXACT))
    assert errors.max() < tolerance


@pytest.mark.parametrize("cap", [0.5, 30.0, 72.1])
def test_caps_bend_smoothly(cap: float) -> None:
    @njit
    def bend(values, cap):  # type: ignore[no-untyped-def]
        curves.cap_row(values, cap)

    values = X.copy()
    bend(values, np.float32(cap))
    np.testing.assert_allclose(values, cap * np.tanh(EXACT / cap), rtol=0, atol=3e-7 * cap)
    assert np.abs(values).max() <= cap
