"""Compile the router's busiest modules with mypyc, where kvikk is built or installed.

Hatchling runs this as a build hook, also for an editable installation. By hand:

    pip install mypy setuptools && python scripts/compile_router.py

Without a C compiler, or should anything else go wrong, the router runs from its sources: slower,
and otherwise the same. ``pip install -v`` shows the line that says why.
"""

import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface as _Hook
except ImportError:  # by hand
    _Hook = object

_SOURCES = Path(__file__).resolve().parents[1] / "src"
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
        if not compiled.is_current():
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
            for file in compiled.LIBRARIES.rglob("*.*"):
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


def _compile() -> None:
    """Raises whatever goes wrong; SystemExit where it is mypyc that does not like something."""
    from mypyc.build import mypycify
    from setuptools import Distribution, Extension

    compiled = _compiled()
    sources = [compiled.source(module) for module in compiled.MODULES]
    in_c = {module: compiled.source(module).with_suffix(".c") for module in compiled.IN_C}
    # Also of what they only call: compiled code relies on its types.
    read = [compiled.ROOM / "compiled.py", *_with_imports(sources), *in_c.values()]
    record = {os.path.relpath(file, compiled.ROOM): compiled.digest(file) for file in read}
    os.chdir(_SOURCES)
    folder = compiled.LIBRARIES.parent
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        extensions = mypycify(
            [
                *_MYPY,
                f"--cache-dir={temporary}/mypy",
                *(str(file.relative_to(_SOURCES)) for file in sources),
            ],
            opt_level="2",
            debug_level="0",
            group_name=compiled.SHARED_LIBRARY.removesuffix("__mypyc"),
            target_dir=temporary,
        )
        extensions += [
            Extension(f"kvikk.router.{module}", [str(file)], extra_compile_args=["-O3"])
            for module, file in in_c.items()
        ]
        distribution = Distribution({"name": "kvikk", "ext_modules": extensions})
        command = distribution.get_command_obj("build_ext")
        command.build_temp, command.build_lib = f"{temporary}/objects", f"{temporary}/libraries"
        distribution.run_command("build_ext")
        made = Path(temporary, "libraries")
        (made / compiled.RECORD.name).write_text(json.dumps(record, indent=1))
        shutil.rmtree(compiled.LIBRARIES, ignore_errors=True)
        made.rename(compiled.LIBRARIES)


def _with_imports(files: Iterable[Path]) -> list[Path]:
    """These files and whatever of kvikk they import, at first or second hand."""
    found: set[Path] = set()
    left = list(files)
    while left:
        file = left.pop()
        if file not in found:
            found.add(file)
            left += _imports(file)
    return sorted(found)


def _imports(file: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(file.read_bytes())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            place = _SOURCES.joinpath(*name.split("."))
            yield from filter(Path.is_file, (place.with_suffix(".py"), place / "__init__.py"))


if __name__ == "__main__":
    _compile()
