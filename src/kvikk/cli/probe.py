"""``kvikk probe``: experiments with the prompt cache of any API, ours or a paid one."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from kvikk.cli import options
from kvikk.cli.probe_session import Settings, json_of, probing
from kvikk.errors import RequestError

probe = typer.Typer(
    name="probe",
    help="Try out an API's prompt cache: where text must stand, from which length, how long.",
    no_args_is_help=True,
)

BaseUrl = Annotated[str, typer.Option(metavar="URL", help="The API, with its /v1.")]
Model = Annotated[str | None, typer.Option(help="Default: the first that the API lists.")]
ApiKey = Annotated[
    str | None, typer.Option(envvar="KVIKK_API_KEY", help="The API's key; never shown.")
]
Style = Annotated[
    Literal["openai", "anthropic"], typer.Option(help="Chat Completions, or Messages.")
]
Prices = Annotated[
    str | None,
    typer.Option(metavar="RULESET", help="Money by these prices, e.g. openai:gpt-5.6; money only."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Send requests that may cost without asking.")]
MaxCost = Annotated[
    str | None, typer.Option(metavar="DOLLARS", help="Do not begin what could cost more; stop at.")
]
Record = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Keep what is done here, and go on from it next time."),
]
NoNonce = Annotated[
    bool,
    typer.Option("--no-nonce", help="Send equal texts in every run, to see what that does."),
]
_LOCAL = "http://127.0.0.1:8000/v1"


@probe.callback()
def _probe() -> None:
    """Try out an API's prompt cache: where text must stand, from which length, how long."""


@probe.command()
def placement(
    base_url: BaseUrl = _LOCAL,
    model: Model = None,
    api_key: ApiKey = None,
    style: Style = "openai",
    handbook: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The fixed text; default: one of about 5,150 tokens."),
    ] = None,
    prices: Prices = None,
    yes: Yes = False,
    max_cost: MaxCost = None,
    record: Record = None,
    no_nonce: NoNonce = False,
    as_json: options.Json = False,
    plot: options.Plot = None,
) -> None:
    """Where must a fixed text stand? Eight questions, one handbook, four arrangements."""
    from kvikk.cli import probe_tables
    from kvikk.probe import placement as experiment
    from kvikk.probe.handbook import handbook as own_handbook

    text = own_handbook() if handbook is None else _read(handbook)
    settings = Settings(
        base_url, model, api_key, style, prices, yes, max_cost, record, no_nonce, as_json, plot
    )
    setup = f"{hash_of(text)} {no_nonce}"
    with probing(settings, "placement", lambda: experiment.planned(text), setup) as session:
        done: dict[str, experiment.Arrangement] = {}
        try:
            for name, arrangement in experiment.placement(session.run, text):
                done[name] = arrangement
                session.note_contamination(arrangement.contaminated)
        finally:
            session.found["arrangements"] = json_of(done)
            probe_tables.placement(settings, done)


@probe.command()
def floor(
    base_url: BaseUrl = _LOCAL,
    model: Model = None,
    api_key: ApiKey = None,
    style: Style = "openai",
    up_to: Annotated[
        int, typer.Option(min=128, max=262_144, help="Longest prompt to try, in words.")
    ] = 8_192,
    prices: Prices = None,
    yes: Yes = False,
    max_cost: MaxCost = None,
    record: Record = None,
    no_nonce: NoNonce = False,
    as_json: options.Json = False,
    plot: options.Plot = None,
) -> None:
    """From which length on are prompts cached, and in which steps?"""
    from kvikk.cli import probe_tables
    from kvikk.probe import floor as experiment

    settings = Settings(
        base_url, model, api_key, style, prices, yes, max_cost, record, no_nonce, as_json, plot
    )
    setup = str(no_nonce)
    with probing(settings, "floor", lambda: experiment.planned(up_to), setup) as session:
        found = experiment.floor(session.run, up_to)
        for line in found.contaminated:
            session.note_contamination(line)
        session.found |= found.to_json()
        probe_tables.floor(settings, found)


@probe.command()
def routing(
    base_url: BaseUrl = _LOCAL,
    model: Model = None,
    api_key: ApiKey = None,
    style: Style = "openai",
    words: Annotated[int, typer.Option(min=16, help="Length of the prompt.")] = 2_400,
    prices: Prices = None,
    yes: Yes = False,
    max_cost: MaxCost = None,
    record: Record = None,
    no_nonce: NoNonce = False,
    as_json: options.Json = False,
    plot: options.Plot = None,
) -> None:
    """Do equal prompts meet at one cache? The same one eight times, with a key and without."""
    from kvikk.cli import probe_tables
    from kvikk.probe import routing as experiment

    if style != "openai":
        raise RequestError("this style of API has no prompt_cache_key to compare with")
    settings = Settings(
        base_url, model, api_key, style, prices, yes, max_cost, record, no_nonce, as_json, plot
    )
    setup = f"{words} {no_nonce}"
    with probing(settings, "routing", lambda: experiment.planned(words), setup) as session:
        done: dict[str, experiment.Repeated] = {}
        try:
            for name, repeated in experiment.routing(session.run, words):
                done[name] = repeated
                session.note_contamination(repeated.contaminated)
        finally:
            session.found |= json_of(done)
            probe_tables.routing(settings, done)


@probe.command()
def lifetime(
    base_url: BaseUrl = _LOCAL,
    model: Model = None,
    api_key: ApiKey = None,
    style: Style = "openai",
    waits: Annotated[
        str, typer.Option(metavar="TIMES", help="When to look again, e.g. 0,5m,1h.")
    ] = "0,1m,4m,290s,310s,10m,1750s,1850s,3500s,3700s",
    retention: Annotated[
        str | None,
        typer.Option(help="prompt_cache_retention to ask for (openai), e.g. 24h."),
    ] = None,
    clock: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file that the server's --clock names: no waiting."),
    ] = None,
    words: Annotated[int, typer.Option(min=16, help="Length of the prompts.")] = 2_400,
    prices: Prices = None,
    yes: Yes = False,
    max_cost: MaxCost = None,
    no_nonce: NoNonce = False,
    as_json: options.Json = False,
    plot: options.Plot = None,
) -> None:
    """How long does an entry live that nobody reads?"""
    from kvikk.cli import probe_tables, report
    from kvikk.probe import lifetime as experiment

    waits_s = [_seconds(wait) for wait in waits.split(",")]
    settings = Settings(
        base_url, model, api_key, style, prices, yes, max_cost, None, no_nonce, as_json, plot
    )
    fields: dict[str, Any] = {}
    if retention is not None:
        if style != "openai":
            raise RequestError("--retention is a field of the openai style alone")
        fields["prompt_cache_retention"] = retention
    with probing(settings, "lifetime", lambda: experiment.planned(waits_s, words)) as session:
        if clock is None:
            report.note(f"this takes {max(waits_s):g} s")
        found = experiment.lifetime(session.run, waits_s, experiment.Clock(clock), fields, words)
        for line in found.contaminated:
            session.note_contamination(line)
        session.found |= found.to_json()
        probe_tables.lifetime(settings, found)


@probe.command()
def keys(
    base_url: BaseUrl = _LOCAL,
    model: Model = None,
    api_key: ApiKey = None,
    style: Style = "openai",
    other_model: Annotated[
        str | None, typer.Option(help="Another model of the API, to change to.")
    ] = None,
    words: Annotated[int, typer.Option(min=16, help="Length of the prompt.")] = 2_400,
    prices: Prices = None,
    yes: Yes = False,
    max_cost: MaxCost = None,
    record: Record = None,
    no_nonce: NoNonce = False,
    as_json: options.Json = False,
) -> None:
    """Which changes beside the text break reuse: tools, schema, effort, model, salt?"""
    from kvikk.cli import probe_tables
    from kvikk.probe import keys as experiment

    settings = Settings(
        base_url, model, api_key, style, prices, yes, max_cost, record, no_nonce, as_json, None
    )
    setup = f"{words} {no_nonce}"
    with probing(
        settings, "keys", lambda: experiment.planned(style, other_model, words), setup
    ) as session:
        done: dict[str, experiment.Effect] = {}
        try:
            for name, effect in experiment.keys(session.run, other_model, words):
                done[name] = effect
                session.note_contamination(effect.contaminated)
        finally:
            session.found["changes"] = json_of(done)
            probe_tables.keys(settings, done)


def hash_of(text: str) -> str:
    """A short digest, to tell one handbook from another."""
    from hashlib import sha256

    return sha256(text.encode()).hexdigest()[:16]


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RequestError(f"--handbook {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise RequestError(f"--handbook {path}: is not UTF-8 text") from None
    if not text.strip():
        raise RequestError(f"--handbook {path}: is empty")
    return text


def _seconds(text: str) -> float:
    """``90``, ``90s``, ``5m`` or ``1h``."""
    number, unit = text.strip(), 1
    if number[-1:] in ("s", "m", "h"):
        number, unit = number[:-1], {"s": 1, "m": 60, "h": 3600}[number[-1]]
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e7:
        raise RequestError(f"--waits: {text!r} is no time; write 90s, 5m or 1h")
    return seconds
