"""The router's busiest modules, which may have been compiled, and whether from what is there now.

``scripts/compile_router.py`` compiles them where kvikk is installed, if there is a C compiler. They
do the same either way. What it makes lies in a folder of its own, one for each kind of Python,
where imports do not look; a record in there says what it was made from. As long as that is what is
there, imports are led to it, and else they find the sources:

    router/_compiled/cpython-311-x86_64-linux-gnu/     sources.json, kvikk/router/load.….so, …
"""

import json
import sys
from collections.abc import Sequence
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOM = Path(__file__).parent
LIBRARIES = ROOM / "_compiled" / EXTENSION_SUFFIXES[0].strip(".").rpartition(".")[0]
RECORD = LIBRARIES / "sources.json"
SHARED_LIBRARY = "kvikk_router__mypyc"
"""Where all the code is; a module's own library only leads there."""

MODULES = (
    *("deciding", "load", "rates", "records"),
    *(f"holdings.{name}" for name in ("drift", "index", "keys", "learned", "tree")),
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
IN_C = ("placement.chunk_keys",)
"""Of these the C beside the source is compiled, which does the same."""


def source(module: str) -> Path:
    """Where a module's source is."""
    return ROOM.joinpath(*module.split(".")).with_suffix(".py")


def library(name: str) -> Path:
    """Where the library for an importable name is, if there is one."""
    place = LIBRARIES.joinpath(*name.split("."))
    return place.with_name(place.name + EXTENSION_SUFFIXES[0])


def digest(file: Path) -> str:
    """What stands for a file as it is now."""
    return sha256(file.read_bytes()).hexdigest()


def is_current() -> bool:
    """Whether there are libraries for this Python, and what they were made from is still so."""
    try:
        recorded = json.loads(RECORD.read_bytes())
        return all(digest(ROOM / name) == known for name, known in recorded.items())
    except (OSError, ValueError):
        return False


class _Finder(MetaPathFinder):
    """Finds the libraries before Python finds the sources."""

    names = frozenset([SHARED_LIBRARY, *(f"kvikk.router.{module}" for module in (*MODULES, *IN_C))])

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See ``MetaPathFinder.find_spec``."""
        return (
            spec_from_file_location(fullname, library(fullname)) if fullname in self.names else None
        )


def take_what_is_compiled() -> None:
    """To be called before any of these modules is imported."""
    if is_current():
        sys.meta_path.insert(0, _Finder())


def is_taken() -> bool:
    """Whether the compiled modules run in this process."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)
