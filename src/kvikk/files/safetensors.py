"""Safetensors files: eight bytes of length, a JSON header, and the tensors' bytes, memory-mapped.

A model may be split into several files; ``model.safetensors.index.json`` then says which tensor
lies where.
"""

import mmap
from collections.abc import Mapping
from math import prod
from pathlib import Path

import numpy as np

from kvikk.errors import ModelError
from kvikk.files.json_object import parse_json_object, read_json_object
from kvikk.files.quantization import BLOCK_FORMATS
from kvikk.files.tensors import Tensor

INDEX_NAME = "model.safetensors.index.json"

# The format's own limit: a longer header is no header.
_MAX_HEADER_BYTES = 100_000_000


def open_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file.

    Raises ModelError, naming the file, if it cannot be read, is not a safetensors file, or its
    tensors overlap, leave gaps or reach beyond its end.
    """
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:  # how mmap refuses an empty file
        raise ModelError(f"{path}: the file is empty; expected a safetensors file") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    header_bytes = int.from_bytes(data[:8], "little")
    data_start = 8 + header_bytes
    if header_bytes > _MAX_HEADER_BYTES or data_start > len(data):
        raise ModelError(f"{path}: not a safetensors file, or truncated within its header")
    header = parse_json_object(path, data[8:data_start])
    header.pop("__metadata__", None)
    entries = sorted(_entry(path, name, entry) for name, entry in header.items())
    tensors: dict[str, Tensor] = {}
    expected_start = 0
    bytes_of_file = np.frombuffer(data, np.uint8)[data_start:]
    for start, stop, name, dtype, shape in entries:
        if start != expected_start:
            raise ModelError(
                f"{path}: tensor {name!r} begins at {start} of the data, not at {expected_start}"
            )
        if stop > len(bytes_of_file):
            raise ModelError(
                f"{path}: the file is truncated: tensor {name!r} ends at {stop} of the data, "
                f"which has {len(bytes_of_file)} bytes"
            )
        tensors[name] = Tensor(name, dtype, shape, bytes_of_file[start:stop])
        expected_start = stop
    if expected_start != len(bytes_of_file):
        raise ModelError(f"{path}: bytes after its last tensor belong to none")
    return tensors


def open_safetensors_folder(folder: Path) -> dict[str, Tensor]:
    """The tensors of all safetensors files that make up the model in ``folder``.

    Raises ModelError as ``open_safetensors`` does, and for an index that names other files than its
    own neighbours or tensors that are not there.
    """
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        for name, tensor in open_safetensors(path).items():
            if name in tensors:
                raise ModelError(f"{path}: tensor {name!r} is also in another file of the model")
            tensors[name] = tensor
    index = folder / INDEX_NAME
    if index.exists():
        missing = _weight_map(index).keys() - tensors.keys()
        if missing:
            raise ModelError(f"{index}: tensor {min(missing)!r} is in none of the files")
    return tensors


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files that make up the model in ``folder``, in order of name; may be empty.

    Raises ModelError for a damaged index, or one that leads out of the folder or to absent files.
    """
    index = folder / INDEX_NAME
    if not index.exists():
        return tuple(sorted(folder.glob("*.safetensors")))
    names = set(_weight_map(index).values())
    for name in sorted(names):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelError(f"{index}: {name!r} is not the name of a safetensors file beside it")
        if not (folder / name).is_file():
            raise ModelError(f"{index}: its file {name} is missing")
    return tuple(folder / name for name in sorted(names))


def _weight_map(index: Path) -> Mapping[str, str]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(name, str) for name in weight_map.values()
    ):
        raise ModelError(f"{index}: has no weight_map from tensors to files")
    return weight_map


def _entry(path: Path, name: str, entry: object) -> tuple[int, int, str, str, tuple[int, ...]]:
    """Start, stop, name, type and shape of one tensor, checked by themselves."""
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(stop)]}:
            pass
        case _:
            raise ModelError(f"{path}: tensor {name!r} has no dtype, shape and data_offsets")
    if dtype not in ("F32", "F16", "BF16"):
        raise ModelError(f"{path}: tensor {name!r} is of type {dtype}; F32, F16 and BF16 are read")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ModelError(f"{path}: tensor {name!r} has the impossible shape {shape}")
    if stop - start != prod(shape) * BLOCK_FORMATS[dtype].num_bytes:
        raise ModelError(f"{path}: tensor {name!r} of {stop - start} bytes is not {dtype} {shape}")
    return start, stop, name, dtype, tuple(shape)
