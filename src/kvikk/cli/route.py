"""``kvikk route``: the router."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvikk.cli import options

if TYPE_CHECKING:
    from kvikk.router.placement.prompts import TextSide


def route(
    replica: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel="Replicas",
            metavar="URL",
            help="A replica, e.g. http://10.0.0.7:8000; repeat for more.",
        ),
    ] = None,
    replicas_file: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel="Replicas",
            metavar="FILE",
            help="Replicas, a URL a line; read again when it changes.",
        ),
    ] = None,
    replica_dns: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel="Replicas",
            metavar="URL",
            help="A URL whose host's addresses are replicas; resolved every 5 s.",
        ),
    ] = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8080,
    policy: Annotated[
        str,
        typer.Option(
            rich_help_panel="Choosing",
            metavar="NAME",
            help="How a replica is chosen: weighted, longest_prefix, affinity, consistent_hash, "
            "least_tokens, least_requests, power_of_two, round_robin or random.",
        ),
    ] = "weighted",
    tokenizer: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Choosing",
            metavar="MODEL",
            help="Tokenise prompts as this model does: an alias, a file, a folder or a hub id; "
            "default: compare content.",
        ),
    ] = None,
    kv_events: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel="Choosing",
            metavar="URL=ADDRESS[,REPLAY]",
            help="Where the replica of that URL publishes KV events, and repeats them; repeatable. "
            "*=tcp://*:5557,tcp://*:5558 is every replica at its own address.",
        ),
    ] = None,
    capacity_tokens: Annotated[
        int,
        typer.Option(
            rich_help_panel="Choosing",
            min=1,
            help="What a replica's cache holds that does not say.",
        ),
    ] = 1 << 20,
    decision_log: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel="Choosing",
            metavar="FILE",
            help="Append a line for each answer, for kvikk replay.",
        ),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel="Callers",
            envvar="KVIKK_ROUTER_API_KEYS",
            help="A key that requests must bear. With several, each is a tenant of its own.",
        ),
    ] = None,
    admin_key: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Callers",
            envvar="KVIKK_ROUTER_ADMIN_KEY",
            help="The key for admin calls; none: no such calls.",
        ),
    ] = None,
    replica_key: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Replicas",
            envvar="KVIKK_ROUTER_REPLICA_KEY",
            help="Sent to replicas instead of the caller's key, and with checks.",
        ),
    ] = None,
    tenant_concurrency: Annotated[
        int,
        typer.Option(
            rich_help_panel="Callers", min=0, help="Requests of one key at once; 0: any number."
        ),
    ] = 0,
    tenant_rate: Annotated[
        float,
        typer.Option(
            rich_help_panel="Callers", min=0, help="Requests of one key a second; 0: any number."
        ),
    ] = 0.0,
    tenant_burst: Annotated[
        int,
        typer.Option(
            rich_help_panel="Callers",
            min=0,
            help="Requests that may come at once under --tenant-rate.",
        ),
    ] = 0,
    replica_concurrency: Annotated[
        int,
        typer.Option(
            rich_help_panel="Answers",
            min=0,
            help="Requests at one replica at once; more wait here.",
        ),
    ] = 0,
    max_queue: Annotated[
        int,
        typer.Option(
            rich_help_panel="Answers", min=0, help="Requests that wait here; more get a 429."
        ),
    ] = 1024,
    queue_timeout: Annotated[
        float,
        typer.Option(
            rich_help_panel="Answers", metavar="SECONDS", help="Longest wait here; then 503."
        ),
    ] = 30.0,
    max_body: options.MaxBody = "32MiB",
    max_buffered: Annotated[
        str,
        typer.Option(
            rich_help_panel="Callers",
            metavar="SIZE",
            help="Bodies of all requests that are held at once; more get a 503.",
        ),
    ] = "1GiB",
    max_connections: Annotated[
        int,
        typer.Option(
            rich_help_panel="Callers",
            min=0,
            help="Open connections of callers; 0: half of the files that may be open.",
        ),
    ] = 0,
    retries: Annotated[
        int,
        typer.Option(
            rich_help_panel="Answers",
            min=0,
            help="Further replicas to send a request to, before its first byte.",
        ),
    ] = 2,
    connect_timeout: Annotated[
        float,
        typer.Option(
            rich_help_panel="Answers", metavar="SECONDS", help="For a connection to a replica."
        ),
    ] = 5.0,
    first_byte_timeout: Annotated[
        float,
        typer.Option(
            rich_help_panel="Answers",
            metavar="SECONDS",
            help="From sending a request to its first byte.",
        ),
    ] = 600.0,
    idle_timeout: Annotated[
        float,
        typer.Option(
            rich_help_panel="Answers", metavar="SECONDS", help="Longest pause within an answer."
        ),
    ] = 300.0,
    total_timeout: Annotated[
        float,
        typer.Option(
            rich_help_panel="Answers", metavar="SECONDS", help="For a whole answer; 0: any time."
        ),
    ] = 3600.0,
    header_timeout: Annotated[
        float,
        typer.Option(
            rich_help_panel="Callers", metavar="SECONDS", help="For a request's head to come in."
        ),
    ] = 10.0,
    body_timeout: Annotated[
        float,
        typer.Option(rich_help_panel="Callers", metavar="SECONDS", help="For its body to come in."),
    ] = 60.0,
    health_interval: Annotated[
        float,
        typer.Option(
            rich_help_panel="Replicas", metavar="SECONDS", help="Between two checks of a replica."
        ),
    ] = 2.0,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel="Replicas",
            metavar="FILE",
            help="Certificates to trust for https replicas.",
        ),
    ] = None,
    access_log: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel="Callers",
            metavar="FILE",
            help="Append a JSON line a request; - is standard error.",
        ),
    ] = None,
    forward: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel="Callers",
            metavar="PREFIX",
            help="Pass on paths that begin so, beside the APIs' own; repeatable.",
        ),
    ] = None,
    drain: options.Drain = 60.0,
) -> None:
    """Route requests to replicas of any OpenAI- or Anthropic-compatible server.

    A request goes where its prefix is cached, as far as load allows. Bytes pass as they came; a
    client that leaves stops the work; what a replica had not begun to answer when it failed goes
    to another.

    For example, two replicas on this machine:

        kvikk route --replica http://127.0.0.1:8001 --replica http://127.0.0.1:8002

    and a fleet behind a name, with keys from the environment and admin calls:

        KVIKK_ROUTER_ADMIN_KEY=… kvikk route --host 0.0.0.0 --replica-dns http://engines:8000
    """
    from kvikk.router.placement.aware import AwarePlacement
    from kvikk.router.placement.options import PlacementOptions, parse_event_source
    from kvikk.router.proxy.keys import TenantLimits
    from kvikk.router.proxy.options import RouterOptions
    from kvikk.router.proxy.serve import run_router
    from kvikk.shapes.quantities import parse_bytes

    placement = PlacementOptions(
        policy=policy.replace("-", "_"),
        events=dict(parse_event_source(text) for text in kv_events or ()),
        text_side=None if tokenizer is None else _text_side(tokenizer),
        capacity_tokens=capacity_tokens,
        replica_key=replica_key,
        decision_log=decision_log,
    )
    router_options = RouterOptions(
        replicas=tuple(replica or ()),
        replicas_file=replicas_file,
        replicas_dns=tuple(replica_dns or ()),
        host=host,
        port=port,
        api_keys=tuple(api_key or ()),
        admin_key=admin_key,
        replica_key=replica_key,
        limits=TenantLimits(tenant_concurrency, tenant_rate, tenant_burst),
        replica_concurrency=replica_concurrency,
        max_queue=max_queue,
        queue_timeout_s=queue_timeout,
        max_body_bytes=parse_bytes(max_body),
        max_connections=max_connections,
        max_buffered_bytes=parse_bytes(max_buffered),
        retries=retries,
        connect_timeout_s=connect_timeout,
        first_byte_timeout_s=first_byte_timeout,
        idle_timeout_s=idle_timeout,
        total_timeout_s=total_timeout,
        header_timeout_s=header_timeout,
        body_timeout_s=body_timeout,
        health_interval_s=health_interval,
        drain_s=drain,
        ca_file=ca_file,
        access_log=access_log,
        forward=tuple(forward or ()),
    )
    run_router(router_options, AwarePlacement(placement))


def _text_side(model: str) -> "TextSide":
    """The tokeniser and chat template of ``model``. Raises ModelError."""
    from kvikk.files.sources import resolve
    from kvikk.router.placement.prompts import TextSide
    from kvikk.text.chat import load_chat_template
    from kvikk.text.tokenizer import load_tokenizer

    source = resolve(model, weights=False)
    tokenizer = load_tokenizer(source)
    return TextSide(tokenizer, load_chat_template(source, tokenizer))
