"""The router's busiest modules, which may have been compiled, and whether from what is there now.

``scripts/compile_router.py`` compiles them where kvikk is installed, if there is a C compiler, and
leaves the result beside the sources. They do the same either way. Python would take the compiled
ones whatever has happened to the sources since, so a record says what they were made from; where
the two are not the same, the sources are used.
"""

import sys
from collections.abc import Sequence
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOM = Path(__file__).parent
RECORD = ROOM / "compiled.sha256"
MODULES = (
    *("deciding", "load", "rates", "records"),
    *(f"holdings.{name}" for name in ("drift", "index", "learned", "tree")),
    *(f"placement.{name}" for name in ("aware", "books", "content", "perfect", "prompts")),
    "placement.replica",
    *(f"policies.by_{name}" for name in ("hash", "key", "load", "prefix", "turn")),
    *(f"policies.{name}" for name in ("ties", "weighted")),
    *(f"proxy.{name}" for name in ("access_log", "asking", "bodies", "breaker", "client")),
    *(f"proxy.{name}" for name in ("exchange", "fleet", "gateway", "keys", "known_head")),
    *(f"proxy.{name}" for name in ("messages", "metrics", "passing", "placement", "pool")),
    *(f"proxy.{name}" for name in ("queue", "replica", "request", "response", "upstream")),
    "proxy.usage",
)


def source(module: str) -> Path:
    """Where a module's source is."""
    return ROOM.joinpath(*module.split(".")).with_suffix(".py")


def digest() -> str:
    """What stands for all these sources as they are now."""
    found = sha256()
    for module in MODULES:
        found.update(sha256(source(module).read_bytes()).digest())
    return found.hexdigest()


def are_current() -> bool:
    """Whether what is compiled was compiled from these sources."""
    return RECORD.is_file() and RECORD.read_text() == digest()


class _Sources(MetaPathFinder):
    """Finds the sources of these modules before Python finds what may lie beside them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See ``MetaPathFinder.find_spec``."""
        module = fullname.removeprefix("kvikk.router.")
        return spec_from_file_location(fullname, source(module)) if module in MODULES else None


def take_sources_unless_current() -> None:
    """To be called before any of these modules is imported."""
    if not are_current():
        sys.meta_path.insert(0, _Sources())
