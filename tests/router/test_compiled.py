"""What is compiled of the router is used as long as it is of these very sources."""

import subprocess
import sys
from pathlib import Path

from kvikk.router import compiled

PROGRAM = "import kvikk.router, kvikk.router.load as load; print(load.__file__)"


def a_room(folder: Path) -> Path:
    """A router of one module, which has something compiled of the wrong kind beside it."""
    room = folder / "kvikk" / "router"
    room.mkdir(parents=True)
    (room.parent / "__init__.py").touch()
    (room / "__init__.py").write_bytes(compiled.ROOM.joinpath("__init__.py").read_bytes())
    code = compiled.ROOM.joinpath("compiled.py").read_text()
    (room / "compiled.py").write_text(
        code.replace("MODULES = (", 'MODULES = ("load",)\n_REST = (', 1)
    )
    (room / "load.py").write_text("")
    (room / "load.abi3.so").touch()
    return room


def what_is_taken(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=folder, capture_output=True, text=True
    )


def test_every_module_that_may_be_compiled_is_there() -> None:
    assert all(compiled.source(module).is_file() for module in compiled.MODULES)


def test_sources_are_taken_if_nothing_says_that_the_compiled_ones_are_of_them(
    tmp_path: Path,
) -> None:
    room = a_room(tmp_path)
    assert what_is_taken(tmp_path).stdout.strip() == str(room / "load.py")


def test_the_compiled_ones_are_taken_until_a_source_changes(tmp_path: Path) -> None:
    room = a_room(tmp_path)
    record = "from kvikk.router import compiled; compiled.RECORD.write_text(compiled.digest())"
    subprocess.run([sys.executable, "-c", record], cwd=tmp_path, check=True)
    assert "load.abi3.so" in what_is_taken(tmp_path).stderr  # which is empty, and no library
    (room / "load.py").write_text("x = 1")
    assert what_is_taken(tmp_path).stdout.strip() == str(room / "load.py")
