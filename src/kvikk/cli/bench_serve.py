"""``kvikk bench serve``: a workload against any server of the OpenAI kind."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from kvikk.cli import options, report
from kvikk.errors import RequestError

WorkloadName = Literal["chat", "fixed", "trace"]
_CHAT, _FIXED, _TRACE = (f"with --workload {name}" for name in ("chat", "fixed", "trace"))
_MODES = {
    "sessions": (_CHAT,),
    "turns": (_CHAT,),
    "system_tokens": (_CHAT,),
    "message_tokens": (_CHAT,),
    "requests": (_FIXED, _TRACE),
    "prompt_tokens": (_FIXED,),
    "output_tokens": (_CHAT, _FIXED),
    "trace": (_TRACE,),
    "shrink": (_TRACE,),
    "speed": (_TRACE,),
}


def serve(
    context: typer.Context,
    base_url: Annotated[
        str, typer.Option(metavar="URL", help="The server, with its /v1.")
    ] = "http://127.0.0.1:8000/v1",
    workload: Annotated[
        WorkloadName | None,
        typer.Option(
            help="Conversations that share a system prompt, requests of one length, or a trace; "
            "default: chat, with --trace that."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Default: the server's first.")] = None,
    api_key: options.ServerKey = None,
    api: Annotated[
        Literal["chat", "completions"] | None,
        typer.Option(help="Which to speak; default: chat for conversations, else completions."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(metavar="PER_SECOND", help="Begin sessions at random moments, on average so."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1, help="So many sessions at a time; default: all, a trace's at its moments."
        ),
    ] = None,
    sessions: Annotated[int, typer.Option(min=1, help="chat: conversations.")] = 16,
    turns: Annotated[int, typer.Option(min=1, help="chat: turns a conversation.")] = 10,
    system_tokens: Annotated[
        int, typer.Option(min=0, help="chat: length of the shared system prompt.")
    ] = 1000,
    message_tokens: Annotated[int, typer.Option(min=1, help="chat: length of a message.")] = 39,
    requests: Annotated[
        int | None,
        typer.Option(min=1, help="fixed: how many, default 32. trace: no more than so many."),
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="fixed: length of a prompt.")] = 128,
    output_tokens: Annotated[
        int | None, typer.Option(min=1, help="Length of an answer; default: chat 48, fixed 128.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="trace: JSON lines of Mooncake's or LMCache's form."),
    ] = None,
    shrink: Annotated[
        int, typer.Option(help="trace: divide a Mooncake trace's lengths and blocks by this.")
    ] = 1,
    speed: Annotated[
        float, typer.Option(help="trace: let requests arrive so many times as fast.")
    ] = 1.0,
    seed: Annotated[
        int | None, typer.Option(help="Decides all texts; default: new ones for every run.")
    ] = None,
    as_json: options.Json = False,
    plot: options.Plot = None,
) -> None:
    """Measure a server: time to first token, time per token, speed, reuse.

    The exit status is 1 if any request failed.
    """
    from rich.console import Console

    from kvikk.bench.load_summary import charts
    from kvikk.bench.progress import MeasuringBar
    from kvikk.bench.serve import ServeOptions, measure
    from kvikk.bench.tables import serve_heading, serve_notes, serve_tables
    from kvikk.bench.traces import Trace, read_trace
    from kvikk.bench.workloads import Chat, Fixed, Workload
    from kvikk.plot import check_plot_path, write_svg

    if plot is not None:
        check_plot_path(plot)
    if workload is None:
        workload = "chat" if trace is None else "trace"
    options.check_mode(context, f"with --workload {workload}", _MODES)
    load: Workload
    if workload == "chat":
        load = Chat(sessions, turns, system_tokens, message_tokens, output_tokens or 48)
    elif workload == "fixed":
        load = Fixed(requests or 32, prompt_tokens, output_tokens or 128)
    elif trace is None:
        raise RequestError("--workload trace needs a file: --trace FILE")
    else:
        load = Trace(read_trace(trace, requests), shrink, speed)
    chosen = ServeOptions(
        base_url,
        api or ("chat" if workload == "chat" else "completions"),
        model=model,
        api_key=api_key,
        rate_per_s=rate,
        concurrency=concurrency,
        seed=seed,
    )
    with MeasuringBar() as bar:
        advance = bar.begin(load.num_requests)
        measured = measure(chosen, load, on_result=lambda result: advance(1, "requests"))
    drawn = charts(measured.summary, measured.run)
    if plot is not None and drawn:
        write_svg(plot, drawn)
    if as_json:
        print(json.dumps(measured.to_json()))
    else:
        console = Console(highlight=False)
        console.print(serve_heading(measured), style="bold", soft_wrap=True)
        for table in serve_tables(measured):
            console.print(table)
            console.print()
    for line in serve_notes(measured):
        report.note(line)
    if plot is not None and not drawn:
        report.problem(f"{plot}: not written, since no request was completed")
    if measured.summary.completed < measured.summary.requests:
        raise typer.Exit(1)
