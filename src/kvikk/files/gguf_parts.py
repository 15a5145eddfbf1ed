"""Models in several GGUF files, as ``llama-gguf-split`` names them: ``x-00001-of-00003.gguf``.

The first part has all of the metadata, each part some of the tensors.
"""

import re
from pathlib import Path

from kvikk.errors import ModelError

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def num_parts(path: Path) -> int:
    """How many files the model of ``path`` consists of, by the file's name."""
    match = _PART.fullmatch(path.name)
    return int(match[3]) if match else 1


def gguf_parts(path: Path) -> tuple[Path, ...]:
    """All files of the model that ``path`` is a part of, the first one first.

    Raises ModelError, naming it, if one is missing.
    """
    match = _PART.fullmatch(path.name)
    if match is None:
        return (path,)
    count = int(match[3])
    parts = []
    for number in range(1, count + 1):
        part = path.with_name(f"{match[1]}-{number:05}-of-{match[3]}.gguf")
        if not part.is_file():
            raise ModelError(f"{part}: is missing; it is one of the {count} files of a model")
        parts.append(part)
    return tuple(parts)


def first_part(path: Path) -> Path:
    """The file of the model that holds its metadata; ``path`` itself where it is the only one."""
    match = _PART.fullmatch(path.name)
    return path if match is None else path.with_name(f"{match[1]}-00001-of-{match[3]}.gguf")
