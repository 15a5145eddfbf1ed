"""Where kvikk keeps what it can always make again."""

import os
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """``$KVIKK_HOME`` if set, else ``kvikk`` in the user's cache folder. Not created by asking."""
    home = os.environ.get("KVIKK_HOME")
    if home:
        return Path(home)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvikk"


def write_atomically(path: Path, content: bytes) -> bool:
    """Put ``content`` at ``path``, whole or not at all; folders are made as needed.

    Returns False where it cannot be written: a cache is a convenience, never a requirement.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary_name = tempfile.mkstemp(dir=path.parent)
        temporary = Path(temporary_name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError:
        return False
    return True
