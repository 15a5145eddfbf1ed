"""``kvikk size``: what a model's cache costs, on paper."""

from pathlib import Path
from typing import Annotated

import typer

from kvikk.cli import options
from kvikk.errors import RequestError


def size(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL…",
            help="An alias, a folder, a config.json, a .gguf file or a hub id.",
        ),
    ],
    context: Annotated[
        str | None,
        typer.Option(metavar="TOKENS", help="E.g. 8192 or 128k; default: the model's own."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Of one device, e.g. 80GB (= 80 GiB)."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Of the whole model; default: its files, or computed."),
    ] = None,
    reserve: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory of each device to leave alone.")
    ] = "0",
    engine: Annotated[
        str,
        typer.Option(
            metavar="logical|kvikk|vllm|sglang|llamacpp|transformers",
            help="By whose rules memory is set aside.",
        ),
    ] = "logical",
    kv_dtype: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Of keys and values, e.g. fp8 or q8_0.")
    ] = None,
    k_dtype: Annotated[str | None, typer.Option(metavar="TYPE", help="Of keys alone.")] = None,
    v_dtype: Annotated[str | None, typer.Option(metavar="TYPE", help="Of values alone.")] = None,
    tp: Annotated[int, typer.Option(help="Devices of tensor parallelism.")] = 1,
    dp_attention: Annotated[
        bool, typer.Option("--dp-attention", help="Each device has conversations of its own.")
    ] = False,
    slots: Annotated[int, typer.Option(help="llama.cpp: slots that share the context.")] = 1,
    block_size: Annotated[
        int | None, typer.Option(help="Tokens a block; default: the engine's own.")
    ] = None,
    step_tokens: Annotated[
        int | None, typer.Option(help="Tokens of a step, which windows hold too.")
    ] = None,
    conversations: Annotated[
        int | None, typer.Option(help="How long may so many conversations be?")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="Memory and bandwidth of, e.g., H100.")
    ] = None,
    bandwidth: Annotated[
        str | None, typer.Option(metavar="SIZE/s", help="Of one device's memory, e.g. 3.35TB/s.")
    ] = None,
    price_per_hour: Annotated[
        float | None, typer.Option(help="Of all devices together, in any currency.")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Side by side; so are several MODELs anyway.")
    ] = False,
    what_if: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="E.g. kv_heads=32, sliding_window=null."),
    ] = None,
    mtp: Annotated[
        int, typer.Option(metavar="LAYERS", help="MTP or EAGLE layers that guess ahead.")
    ] = 0,
    draft: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A draft model, cached beside it.")
    ] = None,
    assume: Annotated[
        str | None, typer.Option(metavar="FAMILY", help="Read an unknown model as, e.g., llama.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="An engine's start-up log: printed beside computed."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Bytes, and conversations, by context.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Say what a model's cache costs, what engines make of that, and how many conversations fit."""
    from kvikk.cli import size_report
    from kvikk.shapes.reserve.engines import EngineOptions
    from kvikk.shapes.sizing_input import make_choices, size_model

    choices = make_choices(
        context=context,
        memory=memory,
        reserve=reserve,
        engine=engine,
        gpu=gpu,
        bandwidth=bandwidth,
        price_per_hour=price_per_hour,
        conversations=conversations,
        options=EngineOptions(tp, dp_attention, block_size, step_tokens, slots),
    )
    sized = [
        size_model(
            model,
            choices,
            weights=weights,
            kv_dtype=kv_dtype,
            k_dtype=k_dtype,
            v_dtype=v_dtype,
            what_if=what_if or (),
            assume=assume,
            mtp=mtp,
            draft=draft,
        )
        for model in models
    ]
    if plot is not None:
        size_report.write_plot(plot, sized)
    if check is not None:
        if len(models) > 1:
            raise RequestError("--check compares one model with one log")
        size_report.print_check(check, sized[0], as_json=as_json)
    elif as_json:
        size_report.print_json(sized)
    elif compare or len(sized) > 1:
        size_report.print_comparison(sized)
    else:
        size_report.print_sizing(sized[0])
