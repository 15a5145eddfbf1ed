"""``python -m tests.backends.assembly``: the assembly of this process's kernels, nothing cached."""

import inspect

import numba
from numba import types

from kvikk.backends.cpu.facts import Product, RowTile
from kvikk.backends.cpu.features import process_path
from kvikk.backends.cpu.jit import CompileTime
from kvikk.backends.cpu.kernels import forms_of
from kvikk.backends.cpu.tiles import TILES


def kernels_assembly() -> str:
    forms = forms_of(process_path())
    tile = CompileTime(RowTile("bf16", 64, 4))
    kernels = [
        (forms.quantize, ()),
        (forms.quantize_panel, ()),
        (forms.sum_of_squares, ()),
        (forms.scores, (tile,)),
        (forms.values, (tile,)),
        (forms.join, (tile,)),
        (forms.multiply, (CompileTime(Product(TILES["Q4_1"])),)),
        (forms.multiply, (CompileTime(Product(TILES["BF16"])),)),
    ]
    parts = []
    for function, facts in kernels:
        num_integers = len(inspect.signature(function).parameters) - len(facts)
        signature = types.int64(*facts, *[types.int64] * num_integers)
        parts.append(numba.cfunc(signature)(function)._library.get_asm_str())
    return "\n".join(parts)


if __name__ == "__main__":
    print(kernels_assembly())
