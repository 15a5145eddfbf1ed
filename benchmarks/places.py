"""Where peers and the models made for them are."""

import os
import sys
from pathlib import Path

PEERS = Path(
    os.environ.get("KVIKK_PEERS")
    or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "kvikk-peers"
)
MODELS = PEERS / "models"
SCRIPTS = Path(__file__).parent / "peers"
RESULTS = Path(__file__).parent / "results"


def python_of(environment: str | None) -> Path | None:
    """The interpreter of a peer's environment, None if it is not installed; without one, ours."""
    if environment is None:
        return Path(sys.executable)
    python = PEERS / environment / "bin" / "python"
    return python if python.exists() else None
