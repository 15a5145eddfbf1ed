"""The environment in which strangers' chat templates run.

It defines what Hugging Face's ``apply_chat_template`` defines, so that a template means the same
here: trimmed blocks, ``break`` and ``continue``, ``generation`` blocks, ``tojson`` without HTML
escapes, ``raise_exception`` and ``strftime_now``. Jinja's immutable sandbox refuses the attributes
that lead to the interpreter. Of what it leaves open, the ways a template goes wrong by mistake are
bounded here: one that runs too long is stopped at its next loop or macro, and no operator builds a
text longer than ``MAX_CHARACTERS``. One made to exhaust memory can still do so, by methods and
filters such as ``replace`` and ``join``: serve templates of those whose weights you would serve.
"""

import json
import re
import threading
import time
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_SECONDS = 2.0  # of the processor's time: on a busy machine a template is not guilty
MAX_CHARACTERS = 1 << 24
MAX_ARGUMENT = 1 << 16  # of a call: how wide to pad, how often to repeat
MAX_EXPONENT = 64

_NUMBER = re.compile(r"[0-9]+")


class _Clock(threading.local):
    deadline_s = float("inf")
    processor_deadline_s = float("inf")


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs chat templates. One may serve several threads."""

    intercepted_binops = frozenset(("*", "**", "+", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        self._clock = _Clock()
        self.filters["tojson"] = _to_json
        for name in ("center", "format"):  # pad as far as they are told
            del self.filters[name]
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def start_clock(self) -> None:
        """Give the template that this thread runs next ``MAX_SECONDS``."""
        self._clock.deadline_s = time.monotonic() + MAX_SECONDS
        self._clock.processor_deadline_s = time.thread_time() + MAX_SECONDS

    def tick(self) -> None:
        """Called by every turn of a loop and every macro."""
        clock = self._clock
        # Time that has not passed was not used either, and is cheaper to ask for.
        if time.monotonic() > clock.deadline_s and time.thread_time() > clock.processor_deadline_s:
            raise SecurityError(f"it ran for more than {MAX_SECONDS:g} s")

    def join_bounded(self, *parts: object) -> str:
        """The ``~`` operator."""
        joined = "".join(map(str, parts))
        _check_length(len(joined))
        return joined

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The intercepted operators, refused where the result would be huge."""
        if operator == "**" and not (isinstance(right, int | float) and abs(right) <= MAX_EXPONENT):
            raise SecurityError(f"an exponent above {MAX_EXPONENT}")
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(sequence, str | list | tuple) and isinstance(times, int):
                    _check_length(len(sequence) * times)
        if operator == "%" and isinstance(left, str):
            values = right if isinstance(right, tuple) else (right,)
            widths = [int(width[-9:]) for width in _NUMBER.findall(left)]
            if "*" in left:
                widths += [abs(value) for value in values if isinstance(value, int)]
            _check_length(sum(widths) + sum(len(str(value)) for value in values))
        if (
            operator == "+"
            and isinstance(left, str | list | tuple)
            and isinstance(right, type(left))
        ):
            _check_length(len(left) + len(right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Any call in a template, refused where it is asked for something huge."""
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, int) and abs(argument) > MAX_ARGUMENT:
                raise SecurityError(f"a call with the argument {argument}")
        return super().call(context, obj, *args, **kwargs)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = _Bounding().visit(super()._parse(source, name, filename))
        assert isinstance(template, nodes.Template)
        return template


class _Bounding(NodeTransformer):
    """Puts a tick into every loop and macro, and a bound around every ``~``."""

    def visit_body(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        tick = nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(tick).set_lineno(node.lineno))
        return node

    visit_For = visit_Macro = visit_CallBlock = visit_body  # noqa: N815, the visitor's names

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802, the visitor's name
        self.generic_visit(node)
        join = nodes.EnvironmentAttribute("join_bounded")
        return nodes.Call(join, node.nodes, [], None, None).set_lineno(node.lineno)


class _GenerationBlock(Extension):
    """``{% generation %}`` marks what training counts as the answer; it changes no text."""

    tags = {"generation"}  # noqa: RUF012, Jinja reads it from the class

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _check_length(length: int) -> None:
    if length > MAX_CHARACTERS:
        raise SecurityError(f"a text of {length} characters; at most {MAX_CHARACTERS}")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own escapes HTML, which no model was trained on.
    _check_length((indent or 0) << 8)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
