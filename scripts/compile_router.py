"""Compile the router's busiest modules with mypyc, where kvikk is built or installed.

Hatchling runs this as a build hook, also for an editable installation. By hand:

    pip install mypy setuptools && python scripts/compile_router.py

Without a C compiler, or should anything else go wrong, one line says so, and the router runs from
its sources: slower, and otherwise the same.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface as _Hook
except ImportError:  # by hand
    _Hook = object

_ROOT = Path(__file__).resolve().parent.parent
_SOURCES = _ROOT / "src"
_LIBRARY = "kvikk_router"
# The types were checked before; here they only have to be known, and what kvikk imports need not be
# installed where it is built.
_MYPY = (
    "--config-file=",
    "--no-site-packages",
    "--ignore-missing-imports",
    "--follow-imports=silent",
)


class RouterBuildHook(_Hook):
    """Adds what was compiled to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Hatchling is about to build; ``version`` is ``editable`` or ``standard``."""
        compiled = _compiled()
        library = _SOURCES / f"{_LIBRARY}__mypyc{EXTENSION_SUFFIXES[0]}"  # for this Python
        if not (compiled.are_current() and library.is_file()):
            command = [sys.executable, __file__]
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
            if done.returncode:
                why = (done.stderr or done.stdout).strip().rpartition("\n")[2][:200]
                self.app.display_warning(
                    f"the router was not compiled, and will run from its sources: {why}"
                )
                return
        if version == "standard":
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            for file in (compiled.RECORD, *_libraries(compiled)):
                build_data["force_include"][str(file)] = str(file.relative_to(_SOURCES))


def _compiled() -> ModuleType:
    """``kvikk.router.compiled``, without what kvikk imports."""
    file = _SOURCES / "kvikk/router/compiled.py"
    spec = importlib.util.spec_from_file_location("compiled", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _libraries(compiled: ModuleType) -> list[Path]:
    return [*_SOURCES.glob(f"{_LIBRARY}__mypyc.*.so"), *compiled.ROOM.rglob("*.so")]


def _compile() -> None:
    """Raises whatever goes wrong; SystemExit where it is mypyc that does not like something."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    compiled = _compiled()
    before = compiled.digest()
    compiled.RECORD.unlink(missing_ok=True)
    for old in _libraries(compiled):  # another Python's, perhaps, and of other sources
        old.unlink()
    os.chdir(_SOURCES)
    files = [str(compiled.source(module).relative_to(_SOURCES)) for module in compiled.MODULES]
    with tempfile.TemporaryDirectory() as folder:
        extensions = mypycify(
            [*_MYPY, f"--cache-dir={folder}/mypy", *files],
            opt_level="2",
            debug_level="0",
            group_name=_LIBRARY,
            target_dir=folder,
        )
        distribution = Distribution({"name": "kvikk", "ext_modules": extensions})
        command = distribution.get_command_obj("build_ext")
        command.inplace = True
        command.build_temp = command.build_lib = folder
        distribution.run_command("build_ext")
    compiled.RECORD.write_text(before)


if __name__ == "__main__":
    _compile()
