"""A tensor as it lies in a file: named, typed, not copied."""

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Tensor:
    """One tensor of a model file.

    ``dtype`` is the file's own type by its GGUF name (``F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K
    Q5_K Q6_K``); safetensors types are mapped to those names. ``shape`` is row-major, outermost
    first, as numpy orders it: a matrix is ``(outputs, inputs)``. ``data`` is uint8 ``[num_bytes]``,
    a view into the memory map.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    @property
    def num_elements(self) -> int:
        """The product of the dimensions."""
        return prod(self.shape)
