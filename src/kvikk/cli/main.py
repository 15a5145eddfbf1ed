"""``kvikk``: the verbs, and how an error leaves the program.

Verbs import what they need when they run, so that ``kvikk --help`` costs no engine.
"""

import os
import sys
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer

from kvikk import __version__
from kvikk.cli.audit import audit
from kvikk.cli.bench import bench
from kvikk.cli.chat import chat
from kvikk.cli.fleet import fleet
from kvikk.cli.generate import generate
from kvikk.cli.list import list_models
from kvikk.cli.pin import pin
from kvikk.cli.probe import probe
from kvikk.cli.pull import pull
from kvikk.cli.replay import replay
from kvikk.cli.rm import rm
from kvikk.cli.route import route
from kvikk.cli.serve import serve
from kvikk.cli.size import size
from kvikk.cli.top import top
from kvikk.cli.watch import watch
from kvikk.cli.why import why
from kvikk.errors import KvikkError

app = typer.Typer(
    help="Serve language models from a paged and shared KV cache.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"kvikk {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print it and go."),
    ] = False,
) -> None:
    """Serve language models from a paged and shared KV cache."""


for _verb in (size, serve, route, replay, watch, generate, chat, why, pin, top, audit, pull, rm):
    app.command()(_verb)
app.command("list")(list_models)
app.add_typer(fleet)
app.add_typer(probe)
app.add_typer(bench)


def main() -> NoReturn:
    """Run one verb; exits 0, or 2 with one line on standard error for bad usage or bad input."""
    for stream in (sys.stdin, sys.stdout):
        # Characters that a terminal cannot take, or bytes that are none, end no conversation.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        status = typer.main.get_command(app).main(standalone_mode=False)
    except KvikkError as error:
        print(f"kvikk: {error}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:
        # The reader has gone, for example `| head`; nothing is left to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "kvikk":
            raise
        extra = "fleet,engine" if error.name.partition(".")[0] in ("ray", "yaml") else "engine"
        print(
            f"kvikk: the package {error.name!r} is missing; "
            f"this verb needs more: pip install 'kvikk[{extra}]'",
            file=sys.stderr,
        )
        sys.exit(2)
    except Exception as error:
        # Bad usage. The library keeps the class of these errors to itself, but not their text.
        if not hasattr(error, "format_message"):
            raise
        # The checking underneath begins some messages with its own word for what went wrong.
        message = error.format_message().rstrip(".").replace(": Value error, ", ": ")
        if message:  # none: no verb was given, and the help has been printed
            print(f"kvikk: {message}; try --help", file=sys.stderr)
            sys.exit(2)
        status = 0
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
