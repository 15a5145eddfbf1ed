"""``kvikk bench timing``: what the cache saves within one answer."""

import json
from typing import Annotated

import typer

from kvikk.cli import options, report
from kvikk.errors import RequestError

_APART, _WITHOUT = "with --phases", "without --phases"
_MODES = {"lengths": (_WITHOUT,), "prompt_tokens": (_WITHOUT,), "longest": (_APART,)}


def timing(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="An alias, a file, a folder, a hub id, or random:SHAPE (random:gpt2). "
            f"Default: {options.DEFAULT_MODEL}.",
        ),
    ] = None,
    model_option: Annotated[str | None, typer.Option("--model", help="The same.")] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="kvikk|transformers",
            help="Ours, or the textbook loop over transformers; several side by side.",
        ),
    ] = None,
    lengths: Annotated[
        str, typer.Option(metavar="N,N,…", help="Output lengths, growing.")
    ] = "32,64,128,256",
    prompt_tokens: Annotated[int, typer.Option(help="Length of the prompt.")] = 64,
    repeats: Annotated[int, typer.Option(help="Runs a cell; the median is shown.")] = 3,
    device: Annotated[
        str, typer.Option(metavar="cpu|cuda", help="Where transformers computes; ours: the CPU.")
    ] = "cpu",
    dtype: Annotated[
        str,
        typer.Option(metavar="f32|bf16", help="Of transformers' arithmetic, and of our KV."),
    ] = "f32",
    backend: options.Backend = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="Default: all cores.")] = None,
    phases: Annotated[
        bool,
        typer.Option("--phases", help="Instead: prefill and decode apart, by length and batch."),
    ] = False,
    longest: Annotated[
        int | None,
        typer.Option(min=32, help="phases: longest context; default: 8192, or the model's."),
    ] = None,
    as_json: options.Json = False,
    plot: options.Plot = None,
) -> None:
    """Generate greedily with and without the cache, and say what each cost."""
    from rich.console import Console

    from kvikk.bench.loops import LoopOptions
    from kvikk.bench.progress import MeasuringBar
    from kvikk.bench.timing_run import TimingOptions, run_phases, run_timing
    from kvikk.bench.timing_tables import (
        difference_lines,
        phase_charts,
        phase_notes,
        phase_tables,
        timing_charts,
        timing_notes,
        timing_table,
    )
    from kvikk.plot import check_plot_path, write_svg

    if plot is not None:
        check_plot_path(plot)
    options.check_mode(context, _APART if phases else _WITHOUT, _MODES)
    name = _one(model, model_option)
    engines = LoopOptions(
        name,
        tuple(part for text in engine or ["kvikk"] for part in text.split(",")),
        device=device,
        dtype=dtype,
        threads=threads,
        backend=backend,
    )
    chosen = TimingOptions(_numbers(lengths), prompt_tokens, repeats)
    console = Console(highlight=False)
    if phases:
        with MeasuringBar() as bar:
            apart = run_phases(engines, repeats, longest, bar.begin, bar.tell)
        if plot is not None:
            write_svg(plot, phase_charts(apart))
        if as_json:
            print(json.dumps({"model": name, **apart.to_json()}))
        else:
            for index, (title, table) in enumerate(phase_tables(apart)):
                console.print(f"\n{title}" if index else title, style="bold", soft_wrap=True)
                console.print(table)
        for line in phase_notes(apart):
            report.note(line)
        return
    with MeasuringBar() as bar:
        measured = run_timing(engines, chosen, bar.begin, bar.tell)
    if plot is not None:
        write_svg(plot, timing_charts(measured))
    if as_json:
        print(json.dumps({"model": name, **measured.to_json()}))
    else:
        console.print(timing_table(measured))
    for line in timing_notes(measured):
        report.note(line)
    for line in difference_lines(measured.differences):
        report.problem(line)
    if measured.differences:
        raise typer.Exit(1)


def _one(model: str | None, model_option: str | None) -> str:
    if model is not None and model_option is not None:
        raise RequestError("the model is named twice; once is enough")
    return model or model_option or options.DEFAULT_MODEL


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise RequestError(
            f"--lengths {text!r}: expected numbers with commas between, like 32,64,128"
        ) from None
