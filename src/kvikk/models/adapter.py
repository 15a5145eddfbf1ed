"""A low-rank adapter described as data: what is added to some of a decoder's matrix products.

LoRA; Hu et al., arXiv:2106.09685. Where W is a decoder's matrix and x its inputs, an adapter's
sequences get

    W x + scale · B (A x)          A: [rank, columns], B: [rows, rank]
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvikk.models.decoder import DecoderLayer, FeedForward, Matrix

Role = Literal["query", "key", "value", "output", "gate", "up", "down"]


@dataclass(frozen=True)
class LowRank:
    """What is added to one matrix's results: ``scale * (b @ (a @ inputs))``.

    ``a`` is ``[rank, columns]``, ``b`` is ``[rows, rank]``, its rows in the matrix's own order.
    """

    a: NDArray[np.float32]
    b: NDArray[np.float32]
    scale: float

    @property
    def rank(self) -> int:
        """Numbers that the inputs are brought down to."""
        return len(self.a)


@dataclass(frozen=True)
class Adapter:
    """All that one adapter adds, by layer and role; ``content_digest`` says what it is.

    SHA-256 over its files: part of the root key of all that is computed with it.
    """

    content_digest: bytes
    deltas: Mapping[tuple[int, Role], LowRank]

    @property
    def rank(self) -> int:
        """The largest of its ranks."""
        return max(delta.rank for delta in self.deltas.values())

    @property
    def num_bytes(self) -> int:
        """What its matrices take in float32."""
        return sum(delta.a.nbytes + delta.b.nbytes for delta in self.deltas.values())


def matrices_by_role(layer: DecoderLayer) -> dict[Role, Matrix]:
    """The matrices of a layer that an adapter may add to. Those of experts are not among them."""
    attention, network = layer.attention, layer.feed_forward
    found: dict[Role, Matrix] = {
        "query": attention.query,
        "key": attention.key,
        "value": attention.value,
        "output": attention.output,
    }
    if isinstance(network, FeedForward):
        found |= {"up": network.up, "down": network.down}
        if network.gate is not None:
            found["gate"] = network.gate
    return found
