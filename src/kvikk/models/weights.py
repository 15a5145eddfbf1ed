"""A model's tensors by their role, each checked for its shape and none overlooked."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvikk.errors import ModelError
from kvikk.files.quantization import dequantize
from kvikk.files.sources import ModelSource
from kvikk.files.tensors import Tensor
from kvikk.models.decoder import FloatVector, Matrix

# Role to (name in safetensors, name in GGUF); ``{layer}`` stands for a layer's number.
RoleNames = Mapping[str, tuple[str, str]]

# Models that also see keep their language model under a prefix, and other parts beside it.
_TEXT_PREFIXES = ("language_model.", "model.language_model.")
_OTHER_PARTS = ("vision_tower.", "multi_modal_projector.")


class Weights:
    """Hands out the tensors of ``source`` by role and remembers which were taken.

    Every method raises ModelError, naming the tensor as the file does, if it is missing or has
    another shape than the configuration promises.
    """

    def __init__(self, source: ModelSource, names: RoleNames, prefix: str = "") -> None:
        """``prefix`` is one that safetensors' names may have or lack."""
        self._source, self._names = source, names
        tensors = source.tensors if source.is_gguf else _text_tensors(source.tensors)
        self._tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
        self._taken: set[str] = set()

    def has(self, role: str) -> bool:
        """Whether the model has the tensor of this role outside its layers."""
        return role in self._names and self._name(role, None) in self._tensors

    def vector(self, role: str, size: int, layer: int | None = None) -> FloatVector:
        """The vector of this role, float32 ``[size]``."""
        return dequantize(self._take(self._name(role, layer), (size,)))

    def bias(self, role: str, size: int, layer: int | None = None) -> FloatVector:
        """What is added to this role's results, float32 ``[size]``."""
        name = self._name(role, layer).removesuffix(".weight") + ".bias"
        return dequantize(self._take(name, (size,)))

    def matrix(
        self,
        role: str,
        rows: int,
        columns: int,
        layer: int | None = None,
        row_order: NDArray[np.int64] | None = None,
        bias: FloatVector | None = None,
    ) -> Matrix:
        """The matrix of this role, ``(rows, columns)``, as it lies in the file."""
        return Matrix(self._take(self._name(role, layer), (rows, columns)), row_order, bias)

    def experts(
        self, role: str, num_experts: int, rows: int, columns: int, layer: int
    ) -> list[Matrix]:
        """The matrices of this role, ``(rows, columns)`` each, one an expert.

        They lie under a name each, or where the name has no place for a number, in one tensor.
        """
        name = self._names[role][1 if self._source.is_gguf else 0]
        if "{expert}" in name:
            names = [name.format(layer=layer, expert=expert) for expert in range(num_experts)]
            return [Matrix(self._take(name, (rows, columns))) for name in names]
        stacked = self._take(name.format(layer=layer), (num_experts, rows, columns))
        flat = Matrix(replace(stacked, shape=(num_experts * rows, columns)))
        return flat.split([rows] * num_experts)

    def transposed_matrix(
        self, role: str, rows: int, columns: int, layer: int, bias: FloatVector | None
    ) -> Matrix:
        """The matrix of this role, ``(rows, columns)``, that lies ``(columns, rows)``: a copy."""
        tensor = self._take(self._name(role, layer), (columns, rows))
        elements = tensor.data.reshape(columns, rows, -1)
        data = np.ascontiguousarray(elements.swapaxes(0, 1)).reshape(-1)
        return Matrix(Tensor(tensor.name, tensor.dtype, (rows, columns), data), bias=bias)

    def embedding(self, columns: int) -> Matrix:
        """The matrix of the role ``embedding``: it alone says how large the vocabulary is."""
        name = self._name("embedding", None)
        tensor = self._tensors.get(name)
        # Whatever is wrong with it is found by asking for at least one row.
        rows = max(tensor.shape[0], 1) if tensor is not None and tensor.shape else 1
        return self.matrix("embedding", rows, columns)

    def refuse_unused(self, ignored: tuple[str, ...] = ()) -> None:
        """Raise ModelError if a tensor was not taken: the model is more than was read of it.

        Names that end in one of ``ignored`` change nothing and may stay.
        """
        for name in self._tensors.keys() - self._taken:
            if not name.endswith(ignored):
                raise ModelError(
                    f"{self._source.path}: has the tensor {name!r}, which this kind of model "
                    "should not have; without it the answers would be wrong"
                )

    def _name(self, role: str, layer: int | None) -> str:
        name = self._names[role][1 if self._source.is_gguf else 0]
        return name if layer is None else name.format(layer=layer)

    def _take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise ModelError(f"{self._source.path}: lacks the tensor {name!r}")
        if tensor.shape != shape:
            raise ModelError(
                f"{self._source.path}: tensor {name!r} has shape {tensor.shape}, "
                f"its configuration promises {shape}"
            )
        self._taken.add(name)
        return tensor


def _text_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The language model's tensors, without the prefix they have beside other parts."""
    text = {}
    for name, tensor in tensors.items():
        if name.removeprefix("model.").startswith(_OTHER_PARTS):
            continue
        inner = name
        for prefix in _TEXT_PREFIXES:
            if name.startswith(prefix):
                inner = name.removeprefix(prefix)
                if not inner.startswith(("model.", "lm_head.")):
                    inner = f"model.{inner}"
        text[inner] = tensor
    return text
