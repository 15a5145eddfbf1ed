"""``kvikk fleet``: replicas across machines, on Ray Serve."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvikk.cli import options
from kvikk.cli.columns import columns

if TYPE_CHECKING:
    from kvikk.wire.reading import JsonValue

fleet = typer.Typer(
    name="fleet",
    help="Serve a model from replicas on several machines, placed and scaled by Ray Serve.",
    no_args_is_help=True,
)

_HEADS = (
    *("replica", "node", "pid", "running", "waiting", "answers", "prompt tokens", "hit"),
    *("held blocks", "known by"),
)


@fleet.command()
def up(
    file: Annotated[Path, typer.Argument(metavar="FLEET.yaml", help="What the fleet is.")],
    check: Annotated[
        bool, typer.Option("--check", help="Only see whether the file makes sense.")
    ] = False,
) -> None:
    """Start a fleet: an ingress, engines, and as many of them as the load takes.

    With ray: local (the default) a cluster of its own on this machine, until Ctrl-C; with an
    address, or auto, on a cluster that is there, where it goes on by itself.

    For example, in FLEET.yaml:

        model: smollm2
        replicas: {min: 2, max: 4}
        engine: {threads: 2, kv_memory: 1GiB}
    """
    from kvikk.fleet.reading import read_fleet

    fleet_options = read_fleet(file)
    if check:
        return
    from kvikk.fleet.running import run_fleet

    run_fleet(fleet_options, lambda line: print(line, file=sys.stderr, flush=True))


@fleet.command()
def status(
    url: Annotated[
        str, typer.Argument(metavar="[URL]", help="The fleet, without /v1.")
    ] = options.DEFAULT_URL,
    api_key: Annotated[
        str | None, typer.Option(envvar="KVIKK_API_KEY", help="The operator's key.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show the replicas of a fleet: where they run, what they hold, what they hit."""
    from kvikk.wire.client import ApiClient

    found = ApiClient(url, api_key).get("v1/kvikk/fleet")
    print(json.dumps(found.value) if as_json else _table(found))


@fleet.command()
def down(
    name: Annotated[str, typer.Argument(help="The fleet's name.")] = "kvikk",
    address: Annotated[
        str, typer.Option(envvar="RAY_ADDRESS", help="The cluster of Ray it runs on.")
    ] = "auto",
) -> None:
    """End a fleet; answers that have begun may finish."""
    from kvikk.errors import RequestError
    from kvikk.fleet.running import end_fleet

    if not end_fleet(name, address):
        raise RequestError(f"no fleet {name!r} runs there")


def _table(found: "JsonValue") -> str:
    rows: list[tuple[str, ...]] = [_HEADS]
    for replica in found.get("replicas").items():
        causes = replica.get("by_cause").members()
        tokens = sum(causes.values())
        hit = f"{causes.get('hit', 0) / tokens:.0%}" if tokens else ""
        numbers = [
            f"{replica.get(name).integer(0):,}"
            for name in ("running_requests", "waiting_tokens", "answers")
        ]
        rows.append(
            (
                replica.get("id").string(),
                replica.get("node").string()[:8],
                str(replica.get("pid").integer(0)),
                *numbers,
                f"{tokens:,}",
                hit,
                f"{replica.get('held_blocks').integer(0):,}",
                replica.get("source").string(),
            )
        )
    ledger = found.get("ledger")
    spent = ledger.get("by_cause").members()
    told = "; ".join(f"{cause} {tokens:,}" for cause, tokens in spent.items())
    name, model, policy = (found.get(field).string() for field in ("name", "model", "policy"))
    requests = ledger.get("requests").integer(0)
    return "\n".join(
        (
            f"{name}: {model}, policy {policy}",
            columns(rows, right=range(2, len(_HEADS) - 1)),
            f"{sum(spent.values()):,} prompt tokens of {requests:,} requests: {told or 'none yet'}",
        )
    )
