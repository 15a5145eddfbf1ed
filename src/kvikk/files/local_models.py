"""The models on this machine: what packages carry, what was fetched from a hub, what was made."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvikk.errors import ModelError
from kvikk.files.cache_folder import cache_folder
from kvikk.files.packages import installed_files
from kvikk.files.random_models import PREFIX
from kvikk.files.sources import resolve

Origin = Literal["package", "hub", "random"]


@dataclass(frozen=True)
class LocalModel:
    """One of them: what to call it, where it came from and lies, and bytes on the disk."""

    name: str
    origin: Origin
    path: Path
    size_bytes: int


def local_models() -> list[LocalModel]:
    """All models that can be served with nothing to be fetched, by name."""
    found = [*_of_packages(), *_of_hub(), *_random()]
    return sorted(found, key=lambda model: model.name)


def pull(name: str) -> LocalModel:
    """Fetch or make a model where that is not done; what there is then.

    Raises ModelError, with what to do, for one that cannot be had.
    """
    source = resolve(name)
    known = next((model for model in local_models() if model.name == name), None)
    return known or LocalModel(name, "hub", source.path, _size_bytes(source.path))


def remove(name: str) -> LocalModel:
    """Delete a model that can be had again; what it was.

    Raises ModelError for one that is not here, or that comes with a package.
    """
    model = next((model for model in local_models() if model.name == name), None)
    if model is None:
        raise ModelError(f"no model {name!r} here; `kvikk list` shows those there are")
    if model.origin == "package":
        raise ModelError(f"{name} comes with a Python package; remove that one with pip")
    if model.origin == "hub":
        from huggingface_hub import scan_cache_dir

        cache = scan_cache_dir()
        revisions = [
            revision.commit_hash
            for repository in cache.repos
            if repository.repo_id == name
            for revision in repository.revisions
        ]
        cache.delete_revisions(*revisions).execute()
    else:
        shutil.rmtree(model.path)
    return model


def _of_packages() -> Iterator[LocalModel]:
    for name, files in installed_files().items():
        size_bytes = sum(file.stat().st_size for file in files)
        path = files[0] if len(files) == 1 else files[0].parent
        yield LocalModel(name, "package", path, size_bytes)


def _of_hub() -> Iterator[LocalModel]:
    try:
        from huggingface_hub import scan_cache_dir
        from huggingface_hub.errors import CacheNotFound
    except ImportError:  # without it nothing was fetched
        return
    try:
        cache = scan_cache_dir()
    except CacheNotFound:
        return
    for repository in cache.repos:
        if repository.repo_type == "model":
            yield LocalModel(
                repository.repo_id, "hub", repository.repo_path, repository.size_on_disk
            )


def _random() -> Iterator[LocalModel]:
    folder = cache_folder() / "random"
    for path in folder.iterdir() if folder.is_dir() else ():
        shape, _, revision = path.name.rpartition("-")
        if revision.isdecimal():
            yield LocalModel(PREFIX + shape, "random", path, _size_bytes(path))


def _size_bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
