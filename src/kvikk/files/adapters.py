"""Where a low-rank adapter is: a folder as PEFT writes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvikk.errors import ModelError
from kvikk.files.identity import content_digest
from kvikk.files.json_object import read_json_object

if TYPE_CHECKING:
    from kvikk.files.tensors import Tensor

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
# What older versions of PEFT wrote: a pickle, which runs whatever its author put into it.
_PICKLE_NAME = "adapter_model.bin"


@dataclass(frozen=True)
class AdapterSource:
    """A folder with ``adapter_config.json`` and ``adapter_model.safetensors``.

    Files are opened when something in them is asked for; whatever is wrong with one is a ModelError
    that names it.
    """

    path: Path

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """What ``adapter_config.json`` says."""
        return read_json_object(self.path / CONFIG_NAME)

    @cached_property
    def tensors(self) -> "Mapping[str, Tensor]":
        """All tensors by their names in the file."""
        from kvikk.files.safetensors import open_safetensors

        return open_safetensors(self.path / WEIGHTS_NAME)

    def content_digest(self) -> bytes:
        """SHA-256 of what the adapter is, whatever it is called."""
        return content_digest((self.path / CONFIG_NAME, self.path / WEIGHTS_NAME))


def find_adapter(path: str) -> AdapterSource:
    """The adapter in the folder ``path``. Raises ModelError, saying what is missing."""
    try:
        folder = Path(path).expanduser()
        is_folder = folder.is_dir()
    except (OSError, RuntimeError) as error:  # a name too long, a home that nobody has
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"no adapter {path!r:.200}: {reason}") from None
    if not is_folder:
        raise ModelError(
            f"no adapter {path!r}: expected a folder with {CONFIG_NAME} and {WEIGHTS_NAME}"
        )
    if not (folder / CONFIG_NAME).is_file():
        raise ModelError(f"{folder}: not an adapter: it has no {CONFIG_NAME}")
    if not (folder / WEIGHTS_NAME).is_file():
        if (folder / _PICKLE_NAME).is_file():
            raise ModelError(
                f"{folder}: its weights are a pickle ({_PICKLE_NAME}), which is not opened: it may "
                f"run any program; save the adapter again as {WEIGHTS_NAME}"
            )
        raise ModelError(f"{folder}: has a {CONFIG_NAME} but no weights ({WEIGHTS_NAME})")
    return AdapterSource(folder)
