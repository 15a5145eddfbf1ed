"""From what a user calls a model to the files it consists of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvikk.errors import ModelError
from kvikk.files import hub, packages
from kvikk.files.gguf_parts import first_part, gguf_parts, num_parts
from kvikk.files.identity import content_digest
from kvikk.files.json_object import read_json_object

# What opens weights imports numpy. That takes a tenth of a second, and a configuration alone, which
# is all that sizing wants, does without; so each is imported where it is used.
if TYPE_CHECKING:
    from kvikk.files.gguf import GGUFFile
    from kvikk.files.tensors import Tensor

ALIASES: Mapping[str, Callable[[], Path]] = {
    "smollm2": packages.smollm2,
    "gemma3-270m": packages.gemma3_270m,
}


@dataclass(frozen=True)
class ModelSource:
    """A model on this machine: one GGUF file, or a folder of ``config.json`` and safetensors.

    ``name`` is what the user called it. ``path`` is the GGUF file (the first, where a model of
    several is only sized), the folder, or a configuration by itself, whose name then ends in
    ``.json``. Files are opened when something in them is asked for; whatever is wrong with one is
    a ModelError that names it.
    """

    name: str
    path: Path

    @property
    def is_gguf(self) -> bool:
        """Whether the model is one GGUF file, which then also holds its tokeniser."""
        return self.path.is_file() and self.path.suffix != ".json"

    @cached_property
    def gguf(self) -> "GGUFFile":
        """The opened GGUF file; only where ``is_gguf``."""
        from kvikk.files.gguf import open_gguf

        return open_gguf(self.path)

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The configuration in the words of ``config.json``, wherever it comes from."""
        if self.is_gguf:
            from kvikk.files.gguf import open_gguf
            from kvikk.files.gguf_config import config_from_gguf

            is_open = "gguf" in vars(self)
            return config_from_gguf(self.gguf if is_open else open_gguf(self.path, weights=False))
        return read_json_object(self.config_path)

    @property
    def config_path(self) -> Path:
        """The file that states the configuration; only where not ``is_gguf``."""
        return self.path if self.path.suffix == ".json" else self.path / "config.json"

    @cached_property
    def tensors(self) -> "Mapping[str, Tensor]":
        """All tensors by the names they have in the files."""
        from kvikk.files.safetensors import open_safetensors_folder

        return self.gguf.tensors if self.is_gguf else open_safetensors_folder(self.path)

    @property
    def weight_files(self) -> tuple[Path, ...]:
        """The files that hold the tensors."""
        return gguf_parts(self.path) if self.is_gguf else _weight_files(self.path)

    def content_digest(self) -> bytes:
        """SHA-256 of what the model is: its configuration and weights, whatever their names."""
        if self.is_gguf:
            return content_digest((self.path,))
        return content_digest((self.config_path, *self.weight_files))


def resolve(model: str, weights: bool = True) -> ModelSource:
    """Find ``model``: an alias, a GGUF file, a ``config.json``, a folder, a hub id ``org/name``, or
    ``random:SHAPE``, which is made here.

    ``weights`` False is for those who only read the configuration: a folder needs none then, and
    nothing but the configuration is fetched from a hub. Raises ModelError with what to do.
    """
    if model in ALIASES:
        return ModelSource(model, ALIASES[model]())
    if model.startswith("random:"):
        from kvikk.files.random_models import random_model

        return ModelSource(model, random_model(model))
    try:
        path = Path(model).expanduser()
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, RuntimeError) as error:  # a name too long, a home that nobody has
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"no model {model!r:.200}: {reason}") from None
    if is_folder:
        return _folder(model, path, weights)
    if is_file:
        return _file(model, path, weights)
    if hub.is_hub_id(model) and path.suffix != ".gguf":
        return _folder(model, hub.fetch(model, weights), weights)
    known = ", ".join(ALIASES)
    raise ModelError(
        f"no model {model!r}: it is no file or folder here, and not an alias ({known}) "
        "or a hub id like org/name"
    )


def _file(name: str, path: Path, weights: bool) -> ModelSource:
    if path.suffix == ".safetensors" and not (path.parent / "config.json").is_file():
        raise ModelError(f"{path}: does not say what its layers are; put its config.json beside it")
    if path.suffix == ".safetensors" or (path.name == "config.json" and weights):
        return _folder(name, path.parent, weights)
    if path.suffix == ".json" and weights:
        raise ModelError(f"{path}: a configuration alone, without weights, cannot be run")
    return _gguf(name, path, weights)


def _gguf(name: str, path: Path, weights: bool) -> ModelSource:
    """A GGUF file, or the first of the several that a model may lie in."""
    path = first_part(path)
    if not path.is_file():
        raise ModelError(f"{path}: is missing; it has the metadata of the model's other files")
    if weights and num_parts(path) > 1:
        raise ModelError(
            f"{path}: one of {num_parts(path)} files of a model; join them with "
            "llama-gguf-split --merge to run it"
        )
    return ModelSource(name, path)


def _folder(name: str, folder: Path, weights: bool) -> ModelSource:
    """A folder is a model by its ``config.json``, or by the only GGUF file in it."""
    if (folder / "config.json").is_file():
        if weights and not _weight_files(folder):
            raise ModelError(f"{folder}: has a config.json but no weights (*.safetensors)")
        return ModelSource(name, folder)
    files = sorted(folder.glob("*.gguf"))
    if len({first_part(file) for file in files}) == 1:
        return _gguf(name, files[0], weights)
    if files:
        names = ", ".join(file.name for file in files)
        raise ModelError(f"{folder}: has several GGUF files; name one of them: {names}")
    raise ModelError(f"{folder}: not a model: it has neither a config.json nor a GGUF file")


def _weight_files(folder: Path) -> tuple[Path, ...]:
    from kvikk.files.safetensors import weight_files

    return weight_files(folder)
