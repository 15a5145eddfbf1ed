"""The user's cache folder: what can be made again, and is kept because making it takes a while."""

import os
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """``$KVIKK_HOME``, else ``kvikk`` in the user's cache folder. It need not exist yet."""
    home = os.environ.get("KVIKK_HOME")
    if home:
        return Path(home).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvikk"


def write_atomically(path: Path, content: bytes) -> bool:
    """Put ``content`` at ``path``, whole or not at all; folders are made as needed.

    Returns False where the folder cannot be written: a cache is a convenience, never a requirement.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            temporary = Path(file.name)
            try:
                file.write(content)
                file.close()
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
    except OSError:
        return False
    return True
