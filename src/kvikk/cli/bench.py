"""``kvikk bench``: the measurements, one command each."""

import typer

bench = typer.Typer(
    name="bench",
    help="Measure: cached against uncached, formula against tensors, workloads over HTTP.",
    no_args_is_help=True,
)


@bench.callback()
def _bench() -> None:
    """Measure: cached against uncached, formula against tensors, workloads over HTTP."""
