"""One kind of weight in a model, named as checkpoints name it."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Weight:
    """``count`` weights of ``elements`` each.

    ``name`` is the module that checkpoints keep it in, of experts that of the first. A matrix that
    quantisation may touch has ``outputs``; embeddings, norms, convolutions and biases have none.
    """

    name: str
    elements: int
    count: int = 1
    outputs: int = 0

    @property
    def total_elements(self) -> int:
        """Elements of all ``count`` of them."""
        return self.elements * self.count


def linear(name: str, inputs: int, outputs: int, count: int = 1) -> Weight:
    """A matrix from ``inputs`` to ``outputs``."""
    return Weight(name, inputs * outputs, count, outputs)


def vector(name: str, elements: int, count: int = 1) -> Weight:
    """A weight that stays in the model's data type: a norm, a bias, an embedding."""
    return Weight(name, elements, count)


def weight_elements(weights: Iterable[Weight]) -> int:
    """Elements of all ``weights`` together: the number of parameters."""
    return sum(weight.total_elements for weight in weights)
