"""What a model is, whatever it is called: a digest of its files' content.

Cache keys are built on it, so that a model replaced under its old name never meets the old one's
keys and values. A large file is read once; afterwards its digest is looked up by where the file is,
its size, its times and its inode.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from kvikk.errors import ModelError
from kvikk.files.cache_folder import cache_folder, write_atomically


def content_digest(paths: Sequence[Path]) -> bytes:
    """SHA-256 over the SHA-256 of each file's content, in the order given.

    Raises ModelError if a file cannot be read.
    """
    return hashlib.sha256(b"".join(file_digest(path) for path in paths)).digest()


def file_digest(path: Path) -> bytes:
    """SHA-256 of one file's content, remembered in the cache folder where that can be written.

    Raises ModelError if the file cannot be read.
    """
    try:
        identity = _identity(path)
        remembered = _remembered_digest(identity)
        if remembered is not None:
            return remembered
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
        unchanged = _identity(path) == identity
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    if unchanged:
        write_atomically(_memory_path(identity), f"{identity}\n{digest.hex()}\n".encode())
    return digest


def _identity(path: Path) -> str:
    """What changes when the file does, as far as the file system tells."""
    status = path.stat()
    return json.dumps(
        [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    )


def _memory_path(identity: str) -> Path:
    return cache_folder() / "digests" / hashlib.sha256(identity.encode()).hexdigest()


def _remembered_digest(identity: str) -> bytes | None:
    try:
        lines = _memory_path(identity).read_text().splitlines()
        if len(lines) != 2 or lines[0] != identity:
            return None
        digest = bytes.fromhex(lines[1])
    except (OSError, ValueError):
        # Nothing remembered, or something that is no digest: either way the file tells.
        return None
    return digest if len(digest) == hashlib.sha256().digest_size else None
