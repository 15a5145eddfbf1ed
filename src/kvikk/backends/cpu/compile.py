"""``python -m kvikk.backends.cpu.compile MODEL``: compile a model's kernels into the cache."""

import sys

import numpy as np

from kvikk.backends.base import Batch, Plan
from kvikk.backends.cpu.backend import CpuBackend
from kvikk.errors import KvikkError
from kvikk.files.sources import resolve
from kvikk.models.load import load_decoder
from kvikk.shapes.shape import cache_groups


def compile_model(model: str) -> None:
    """Compile everything that serving ``model`` with KV in bf16 needs, by running one token."""

    def show(name: str, done: int, total: int) -> None:
        print(f"kernels {done}/{total}: {name}", file=sys.stderr)

    decoder = load_decoder(resolve(model))
    groups = cache_groups(decoder.shape)
    backend = CpuBackend(compile_progress=show)
    backend.load(decoder, Plan(groups, (1,) * len(groups), 32, "bf16", 16, 1, 32))
    zero = np.zeros(1, np.int32)
    tables = tuple(np.zeros((1, 1), np.int32) for _ in groups)
    backend.forward(Batch(zero, zero, zero, tables, zero))


if __name__ == "__main__":
    try:
        compile_model(sys.argv[1] if len(sys.argv) > 1 else "smollm2")
    except KvikkError as error:
        sys.exit(str(error))
