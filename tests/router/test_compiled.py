"""What is compiled of the router is used as long as it is of what is there, and by one Python."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvikk.router import compiled

PROGRAM = "import kvikk.router, kvikk.router.load as load; print(load.__file__)"
SCRIPT = Path(__file__).parents[2] / "scripts" / "compile_router.py"


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """A router of one module and of something it reads; what is compiled of it is no library."""
    room = tmp_path / "kvikk" / "router"
    room.mkdir(parents=True)
    (room.parent / "__init__.py").touch()
    (room.parent / "read.py").touch()
    for name in ("__init__.py", "compiled.py"):
        (room / name).write_bytes((compiled.ROOM / name).read_bytes())
    (room / "load.py").touch()
    libraries = room / compiled.LIBRARIES.relative_to(compiled.ROOM)
    library = libraries / "kvikk" / "router" / f"load{EXTENSION_SUFFIXES[0]}"
    library.parent.mkdir(parents=True)
    library.touch()
    names = ["compiled.py", "load.py", "../read.py"]
    record = {name: compiled.digest(room / name) for name in names}
    (libraries / compiled.RECORD.name).write_text(json.dumps(record))
    return room


def what_is_taken(room: Path) -> str:
    folder = room.parents[1]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=folder, capture_output=True, text=True
    )
    return "library" if f"load{EXTENSION_SUFFIXES[0]}" in done.stderr else done.stdout.strip()


def test_libraries_are_taken_while_all_is_there_that_they_were_made_from(room: Path) -> None:
    assert what_is_taken(room) == "library"  # which is empty, and so an error


@pytest.mark.parametrize("edited", ["load.py", "compiled.py", "../read.py"])
def test_an_edit_is_never_without_effect(edited: str, room: Path) -> None:
    with (room / edited).open("a") as file:
        file.write("# edited\n")
    assert what_is_taken(room) == str(room / "load.py")


@pytest.mark.parametrize("record", [None, "", "{", '{"gone.py": ""}'])
def test_sources_are_taken_where_no_record_speaks_for_libraries(
    record: str | None, room: Path
) -> None:
    file = room / compiled.RECORD.relative_to(compiled.ROOM)
    if record is None:
        file.unlink()
    else:
        file.write_text(record)
    assert what_is_taken(room) == str(room / "load.py")


def test_another_pythons_libraries_are_nothing_to_this_one(room: Path) -> None:
    libraries = room / compiled.LIBRARIES.relative_to(compiled.ROOM)
    libraries.rename(libraries.with_name("cpython-399-x86_64-linux-gnu"))
    assert what_is_taken(room) == str(room / "load.py")


def test_what_is_recorded_are_the_modules_and_all_of_kvikk_that_they_import() -> None:
    """Python itself is asked: it has imported nothing of kvikk that is not recorded."""
    script = the_script()
    recorded = set(script._with_imports(map(compiled.source, compiled.MODULES)))
    names = [f"kvikk.router.{module}" for module in compiled.MODULES]
    program = (
        "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]];"
        "print(*(one.__file__ for name, one in sys.modules.items() if name.startswith('kvikk.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *names], capture_output=True, text=True, check=True
    )
    modules = {Path(file) for file in done.stdout.split() if not file.endswith("__init__.py")}
    sources = {one for one in modules if one.suffix == ".py"} - {Path(compiled.__file__)}
    assert sources
    assert sources <= recorded


def test_sources_alone_decide_as_whatever_is_installed_does(tmp_path: Path) -> None:
    """A trace through policies, index and oracles comes to the same figures."""
    shutil.copytree(
        compiled.ROOM.parent,
        tmp_path / "kvikk",
        ignore=shutil.ignore_patterns("_compiled", "*.pyc"),
    )
    trace = Path(__file__).with_name("data") / "mooncake_conversation_excerpt.jsonl"
    command = [sys.executable, "-m", "kvikk", "replay", str(trace), "--replicas", "4", "--json"]
    taken = "from kvikk.router import compiled; print(compiled.ROOM, compiled.is_taken())"
    sources = os.environ | {"PYTHONPATH": str(tmp_path)}

    def output(words: list[str], **options: Any) -> str:
        return subprocess.run(
            words, cwd=tmp_path.parent, capture_output=True, text=True, check=True, **options
        ).stdout

    says = output([sys.executable, "-c", taken], env=sources)
    assert says.split() == [str(tmp_path / "kvikk" / "router"), "False"]
    assert json.loads(output(command, env=sources)) == json.loads(output(command))


def the_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compile_router", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
