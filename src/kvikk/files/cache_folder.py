"""Where kvikk keeps what it can always make again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$KVIKK_HOME`` if set, else ``kvikk`` in the user's cache folder. Not created by asking."""
    home = os.environ.get("KVIKK_HOME")
    if home:
        return Path(home)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvikk"
