"""YAML read field by field, so that whatever is wrong is one line that names file, line and field.

Strings that begin with ``$`` stand for a variable of the environment: keys and passwords need not
be in a file.
"""

import math
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NoReturn

import yaml

from kvikk.errors import ModelError, RequestError
from kvikk.shapes.quantities import parse_bytes


def open_yaml(file: Path) -> "Field":
    """The whole of a file. Raises RequestError if it cannot be read or is not YAML."""
    try:
        node = yaml.compose(file.read_text("utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise RequestError(f"cannot read {file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise RequestError(f"{file} is not a text in UTF-8") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = " ".join(str(error.problem or error.context or "not YAML").split())
        raise RequestError(f"{file}, line {line}: not YAML: {problem}") from None
    except RecursionError:
        raise RequestError(f"{file} is nested too deeply") from None
    except yaml.YAMLError as error:
        raise RequestError(f"{file} is not YAML: {' '.join(str(error).split())}") from None
    return Field(file, "", node)


class Field:
    """A value in a file and the path to it there; ``node`` is None where there is none.

    All readers raise RequestError for another type, naming file, line and path.
    """

    def __init__(self, file: Path, path: str, node: yaml.Node | None, line: int = 1) -> None:
        self.path = path
        self._file = file
        self._node = node
        self._line = line if node is None else node.start_mark.line + 1

    @property
    def is_absent(self) -> bool:
        """Whether there is no value, or null."""
        return self._node is None or self._node.tag == "tag:yaml.org,2002:null"

    def members(self, known: Collection[str]) -> dict[str, "Field"]:
        """The fields of a mapping, all of which must be ``known``; those that are not there too."""
        found: dict[str, Field] = {}
        if not self.is_absent:
            if not isinstance(self._node, yaml.MappingNode):
                self._fail_type("a mapping")
            for key, value in self._node.value:
                if not isinstance(key, yaml.ScalarNode):
                    Field(self._file, self.path, key)._fail_type("a name in front of its value")
                name = str(key.value)
                field = Field(self._file, self._below(name), value)
                field._line = key.start_mark.line + 1
                if name not in known:
                    field.fail(f"is not known; there is {', '.join(sorted(known))}")
                if name in found:
                    field.fail(f"is there twice, first in line {found[name]._line}")
                found[name] = field
        absent = {name: Field(self._file, self._below(name), None, self._line) for name in known}
        return absent | found

    def items(self) -> Iterator["Field"]:
        """The elements of a list; a single value is a list of one."""
        if self.is_absent:
            return
        if isinstance(self._node, yaml.SequenceNode):
            for number, node in enumerate(self._node.value):
                yield Field(self._file, f"{self.path}[{number}]", node)
        else:
            yield self

    def text(self) -> str:
        """A string, or what the environment has in its place."""
        if not isinstance(self._node, yaml.ScalarNode) or self.is_absent:
            self._fail_type("a text")
        value: str = self._node.value
        if value.startswith("$"):
            name = value[1:].removeprefix("{").removesuffix("}")
            if name not in os.environ:
                self.fail(f"stands for the environment's {name!r}, which is not set")
            return os.environ[name]
        return value

    def integer(self) -> int:
        """A whole number."""
        value = self.number()
        if not value.is_integer():
            self._fail_type("a whole number")
        return int(value)

    def number(self) -> float:
        """A finite number."""
        try:
            value = float(self.text().replace("_", ""))
        except ValueError:
            self._fail_type("a number")
        if not math.isfinite(value):
            self._fail_type("a finite number")
        return value

    def boolean(self) -> bool:
        """True or false."""
        text = self.text().lower()
        if text not in ("true", "false", "yes", "no", "on", "off"):
            self._fail_type("true or false")
        return text in ("true", "yes", "on")

    def size(self) -> int:
        """Bytes."""
        try:
            return parse_bytes(self.text())
        except ModelError as error:
            self.fail(f"is not a size: {error}")

    def fail(self, problem: str) -> NoReturn:
        """Raise RequestError: ``problem`` follows the field's name."""
        what = f"{self.path} " if self.path else ""
        raise RequestError(f"{self._file}, line {self._line}: {what}{problem}", self.path or None)

    def _fail_type(self, expected: str) -> NoReturn:
        match self._node:
            case yaml.ScalarNode(value=value):
                self.fail(f"is {str(value)[:60]!r}; expected {expected}")
            case yaml.SequenceNode():
                self.fail(f"is a list; expected {expected}")
            case yaml.MappingNode():
                self.fail(f"is a mapping; expected {expected}")
        self.fail(f"is missing; expected {expected}")

    def _below(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name
