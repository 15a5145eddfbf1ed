"""``kvikk bench``: the measurements, one command each."""

import typer

from kvikk.cli.bench_memory import memory
from kvikk.cli.bench_serve import serve
from kvikk.cli.bench_timing import timing

bench = typer.Typer(
    name="bench",
    help="Measure: cached against uncached, formula against tensors, workloads over HTTP.",
    no_args_is_help=True,
)
for _verb in (timing, memory, serve):
    bench.command()(_verb)


@bench.callback()
def _bench() -> None:
    """Measure: cached against uncached, formula against tensors, workloads over HTTP."""
