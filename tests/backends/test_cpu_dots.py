"""Products within a lane as they are emitted for a CPU that this one is not."""

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

from kvikk.backends.cpu.dots import dot_bfloats, dot_bytes
from kvikk.backends.cpu.vectors import Float, Int, Vectors, Word64

ARM = "aarch64-unknown-linux-gnu"


class TargetOf:
    """As much of numba's target as kernels ask."""

    def __init__(self, triple: str, features: str) -> None:
        self._settled = (triple, "generic", features)

    def codegen(self) -> "TargetOf":
        return self

    def magic_tuple(self) -> tuple[str, str, str]:
        return self._settled


def arm_assembly(largest: int) -> str:
    """Eight registers' products of bytes, then one of bfloats, for any Arm of 64 bits."""
    module = ir.Module()
    module.triple = ARM
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [Word64] * 3), "kernel")
    builder = ir.IRBuilder(function.append_basic_block())
    v = Vectors(TargetOf(ARM, ""), builder)
    weights, inputs, out = function.args
    unsigned = [v.load(v.lanes_of(Int), weights, 16 * word) for word in range(8)]
    signed = [v.splat_load(Int, inputs, 4 * word) for word in range(8)]
    total = builder.sitofp(dot_bytes(v, unsigned, signed, largest), v.lanes_of(Float))
    v.store(dot_bfloats(v, total, unsigned[0], signed[0]), out)
    builder.ret_void()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(ARM).create_target_machine()
    return machine.emit_assembly(llvm.parse_assembly(str(module)))


@pytest.mark.parametrize(("largest", "products"), [(15, 16), (63, 16), (255, 32)])
def test_arm_multiplies_bytes_by_neon(largest: int, products: int) -> None:
    assembly = arm_assembly(largest)
    # Eight bytes an instruction: two a register, and twice that for bytes of more than seven bits.
    assert assembly.count("\tsmull") == products
    assert assembly.count("\taddp\t") == products // 2
    assert assembly.count("\tfmla\t") == 2
    assert "\tbl\t" not in assembly  # nothing is left to a library
