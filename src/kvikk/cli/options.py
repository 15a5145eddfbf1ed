"""Options that several verbs share, and how they become an engine's."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

DEFAULT_MODEL = "smollm2"

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="An alias (smollm2, gemma3-270m), a .gguf file, a model folder, or a hub id.",
    ),
]
Backend = Annotated[
    str,
    typer.Option(
        rich_help_panel="Engine", metavar="auto|cpu|reference", help="What does the arithmetic."
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        rich_help_panel="Engine", min=1, help="Threads of the CPU backend; default: all cores."
    ),
]
KvMemory = Annotated[
    str | None,
    typer.Option(
        rich_help_panel="Memory",
        metavar="SIZE",
        help="Memory for KV blocks, e.g. 2GiB; default: a share of what is free.",
    ),
]
KvDtype = Annotated[
    str | None,
    typer.Option(
        rich_help_panel="Memory",
        metavar="f32|bf16|int8|fp8|int4",
        help="Data type of keys and values.",
    ),
]
BlockSize = Annotated[
    int, typer.Option(rich_help_panel="Engine", help="Token positions a block: a power of two.")
]
MaxContext = Annotated[
    int | None,
    typer.Option(
        rich_help_panel="Engine", help="Longest conversation, in tokens; default: the model's own."
    ),
]
NoPrefixCache = Annotated[
    bool,
    typer.Option(
        "--no-prefix-cache", rich_help_panel="Engine", help="Share nothing between requests."
    ),
]
NoSpeculation = Annotated[
    bool,
    typer.Option(
        "--no-speculation",
        rich_help_panel="Engine",
        help="Guess no tokens ahead; answers are the same, slower.",
    ),
]
ChatTemplate = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel="Engine", help="A Jinja file to use instead of the model's own template."
    ),
]
Adapters = Annotated[
    list[str] | None,
    typer.Option(
        rich_help_panel="Engine",
        metavar="NAME=PATH",
        help="A LoRA adapter in PEFT's form, which requests name as their model; repeatable.",
    ),
]
Temperature = Annotated[
    float, typer.Option(help="0 takes the likeliest token; more is more varied.")
]
TopK = Annotated[int, typer.Option(help="Choose among the k likeliest tokens; 0: among all.")]
TopP = Annotated[float, typer.Option(help="Choose among the likeliest tokens of this total.")]
Seed = Annotated[int | None, typer.Option(help="Makes a sampled answer repeatable.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE.svg", help="Draw the figures into this file too.")
]
Host = Annotated[str, typer.Option(rich_help_panel="Listening", help="Address to listen on.")]
Port = Annotated[
    int, typer.Option(rich_help_panel="Listening", help="Port to listen on; 0 takes any free one.")
]
MaxBody = Annotated[
    str,
    typer.Option(
        rich_help_panel="Listening",
        metavar="SIZE",
        help="Largest request body; a larger one gets a 413.",
    ),
]
Drain = Annotated[
    float,
    typer.Option(
        rich_help_panel="Listening",
        metavar="SECONDS",
        help="Time for answers to finish on SIGTERM.",
    ),
]
DEFAULT_URL = "http://127.0.0.1:8000"
ServerUrl = Annotated[str, typer.Option(help="The server, without /v1.")]
ServerKey = Annotated[str | None, typer.Option(envvar="KVIKK_API_KEY", help="The server's key.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


def check_mode(context: typer.Context, mode: str, modes: Mapping[str, Sequence[str]]) -> None:
    """Raise RequestError if an option was given that has no say in ``mode``.

    ``modes`` says of each option that belongs to some modes, by its parameter's name, to which. A
    mode is named by how to get it: ``with --phases``. An option's default is nobody's wish.
    """
    from kvikk.errors import RequestError

    for name, its_modes in modes.items():
        source = context.get_parameter_source(name)
        if mode not in its_modes and source is not None and source.name != "DEFAULT":
            option = f"--{name.replace('_', '-')}"
            raise RequestError(f"{option} means something only {' or '.join(its_modes)}")


def engine_options(
    *, kv_memory: str | None, max_context: int | None, **others: Any
) -> dict[str, Any]:
    """A command line's options by the engine's own names, for ``EngineOptions`` and ``LLM``.

    Raises ModelError for a size without sense.
    """
    from kvikk.shapes.quantities import parse_bytes

    return {
        "kv_memory_bytes": None if kv_memory is None else parse_bytes(kv_memory),
        "max_context_tokens": max_context,
        **others,
    }


def adapters(given: list[str] | None) -> tuple[tuple[str, str], ...]:
    """Names and folders of adapters. Raises ModelError for one without either."""
    from kvikk.errors import ModelError

    pairs = [one.partition("=") for one in given or ()]
    for name, _, path in pairs:
        if not name or not path:
            raise ModelError(f"--adapter {name}: expected NAME=PATH, a name and a folder")
    return tuple((name, path) for name, _, path in pairs)


def tier_options(
    host: str | None, disk: str | None, redis: str | None, redis_expire_s: float | None
) -> dict[str, Any]:
    """The tiers of a command line by the engine's own names. Raises ModelError for a bad size."""
    from kvikk.errors import ModelError
    from kvikk.shapes.quantities import parse_bytes

    folder, disk_bytes = disk, None
    if disk is not None and ":" in disk:
        path, _, size = disk.rpartition(":")
        try:
            folder, disk_bytes = path, parse_bytes(size)
        except ModelError:
            if "/" not in size:  # then it is no part of a path
                raise
    if folder == "":
        raise ModelError("the disk tier has no folder; expected PATH or PATH:SIZE")
    return {
        "host_tier_bytes": None if host is None else parse_bytes(host),
        "disk_tier": None if folder is None else Path(folder).expanduser(),
        "disk_tier_bytes": disk_bytes,
        "redis_tier": redis,
        "redis_tier_expire_s": redis_expire_s,
    }


def generation_options(*, max_tokens: int, seed: int | None, **sampling: Any) -> dict[str, Any]:
    """What a command line asks of each answer, as parameters of ``LLM`` and of a server.

    Raises RequestError, before a model is loaded, for a number without sense.
    """
    from kvikk.backends.base import SamplingParameters
    from kvikk.engine.requests import Generation

    Generation(max_tokens=max_tokens, seed=seed, sampling=SamplingParameters(**sampling))
    return {"max_tokens": max_tokens, "seed": seed, **sampling}
