"""Mixtures of experts on the CPU: the reference's answers, and the same bits in any company."""

from dataclasses import replace

import numpy as np
import pytest

from kvikk.backends.cpu.backend import CpuBackend
from kvikk.backends.reference.backend import ReferenceBackend
from kvikk.errors import ModelError
from tests.backends.driver import Driver
from tests.backends.random_decoders import Shape, in_float32, random_decoder
from tests.backends.test_cpu_bits import check_all

MIXED = ("Q5_0", "Q5_0", "Q8_0", "Q5_0", "Q5_0", "Q5_0", "Q6_K", "Q8_0")
# Attention as in the tests of bits, whose kernels are there already.
EXPERTS = Shape(
    hidden_size=256, feed_forward_size=256, windows=(48, None, 300), num_experts=7, dtypes=MIXED
)
TOKENS = np.random.default_rng(4).integers(0, 101, 150).tolist()


@pytest.mark.parametrize("num_used", [1, 3, 7])
def test_experts_are_those_of_the_reference(num_used: int) -> None:
    shape = Shape(num_experts=7, num_used_experts=num_used)
    decoder = random_decoder(shape)
    expected = Driver(ReferenceBackend(), decoder, 256).all_logits(TOKENS, 101)
    found = Driver(CpuBackend(2), decoder, 256).all_logits(TOKENS, 64)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * expected.std())


def test_quantised_experts_are_near_the_reference() -> None:
    decoder = random_decoder(EXPERTS)
    truth = Driver(ReferenceBackend(), in_float32(decoder), 256).all_logits(TOKENS, 101)
    found = Driver(CpuBackend(2), decoder, 256, kv_dtype="bf16").all_logits(TOKENS, 101)
    # Where two experts are about equally good, rounding may choose the other one.
    far = (np.abs(found - truth).max(axis=-1) > 0.1 * truth.std()).mean()
    assert far < 0.1


def test_experts_give_the_same_bits() -> None:
    tokens = np.random.default_rng(3).integers(0, 101, 300).tolist()
    check_all(random_decoder(EXPERTS), tokens)


def test_experts_that_no_kernel_runs_are_refused() -> None:
    shape = replace(EXPERTS, dtypes=(*MIXED[:4], "Q8_0", *MIXED[5:]))
    with pytest.raises(ModelError, match="gate and up are of one tensor type"):
        Driver(CpuBackend(1), random_decoder(shape), 64)
