"""``kvikk serve``: the HTTP server."""

from pathlib import Path
from typing import Annotated

import typer

from kvikk.cli import options


def serve(
    model: options.Model = options.DEFAULT_MODEL,
    host: options.Host = "127.0.0.1",
    port: options.Port = 8000,
    backend: options.Backend = "auto",
    threads: options.Threads = None,
    kv_memory: options.KvMemory = None,
    kv_dtype: options.KvDtype = None,
    block_size: options.BlockSize = 32,
    max_context: options.MaxContext = None,
    no_prefix_cache: options.NoPrefixCache = False,
    no_speculation: options.NoSpeculation = False,
    chat_template: options.ChatTemplate = None,
    adapter: options.Adapters = None,
    step_tokens: Annotated[
        int,
        typer.Option(
            rich_help_panel="Engine",
            help="Tokens of one step: the longest stall that a long prompt causes.",
        ),
    ] = 256,
    max_running: Annotated[
        int, typer.Option(rich_help_panel="Engine", help="Requests that run at once.")
    ] = 64,
    max_queue: Annotated[
        int, typer.Option(rich_help_panel="Engine", help="Requests that wait; more get a 429.")
    ] = 256,
    max_body: options.MaxBody = "4MiB",
    send_timeout: Annotated[
        float,
        typer.Option(
            rich_help_panel="Listening",
            metavar="SECONDS",
            help="Cut off a client that takes nothing of its answer for so long.",
        ),
    ] = 60.0,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel="Callers",
            envvar="KVIKK_API_KEYS",
            help="A key that requests must bear. With several, each is a tenant of its own.",
        ),
    ] = None,
    operator_key: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Callers",
            envvar="KVIKK_OPERATOR_KEY",
            help="A key that may also act for all tenants at once.",
        ),
    ] = None,
    tenant_requests: Annotated[
        int | None,
        typer.Option(
            rich_help_panel="Callers",
            help="Requests one key may have at once; default: half of all, if there are several.",
        ),
    ] = None,
    access_log: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel="Logs",
            metavar="FILE",
            help="Append a line of JSON for each request; SIGHUP opens it anew.",
        ),
    ] = None,
    ledger_log: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel="Logs",
            metavar="FILE",
            help="Append a line for each request: where its tokens went, in hashes.",
        ),
    ] = None,
    ledger_text: Annotated[
        bool,
        typer.Option(
            "--ledger-text", rich_help_panel="Logs", help="Put the prompts into that log as well."
        ),
    ] = False,
    otlp_traces_endpoint: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Logs",
            metavar="URL",
            help="Send spans of each request there, e.g. http://localhost:4318/v1/traces.",
        ),
    ] = None,
    ledger_memory: Annotated[
        str,
        typer.Option(
            rich_help_panel="Memory",
            metavar="SIZE",
            help="Memory for what the cache does not hold any more.",
        ),
    ] = "96MiB",
    host_tier: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Memory",
            metavar="SIZE",
            help="Keep evicted blocks, compressed, in so much memory.",
        ),
    ] = None,
    disk_tier: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Memory",
            metavar="PATH[:SIZE]",
            help="Keep blocks in a folder, also for the next start; SIZE: half of what is free.",
        ),
    ] = None,
    redis_tier: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Memory",
            metavar="URL",
            envvar="KVIKK_REDIS_TIER",
            help="Keep blocks in a Redis or Valkey, and share them with its other engines.",
        ),
    ] = None,
    redis_expire: Annotated[
        float | None,
        typer.Option(
            rich_help_panel="Memory",
            metavar="SECONDS",
            help="Let blocks in Redis go so long after their use.",
        ),
    ] = None,
    sleep_after: Annotated[
        float | None,
        typer.Option(
            rich_help_panel="Memory",
            metavar="SECONDS",
            help="Put conversations into the tiers so long after an answer.",
        ),
    ] = None,
    tenant_share: Annotated[
        float,
        typer.Option(
            rich_help_panel="Memory",
            metavar="0-1",
            help="Part of the KV blocks that each tenant keeps.",
        ),
    ] = 0.0,
    eviction: Annotated[
        str,
        typer.Option(
            rich_help_panel="Memory",
            metavar="NAME",
            help="Which cached block goes for a new one: duel, hit-density or lru.",
        ),
    ] = "duel",
    rules: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Bill",
            metavar="RULESET",
            help="Report usage as this provider would, such as openai:gpt-5.6 or anthropic:*.",
        ),
    ] = None,
    rules_file: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel="Bill",
            metavar="FILE",
            help="Rules and prices of your own, TOML or JSON, on top.",
        ),
    ] = None,
    price_map: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel="Bill", metavar="FILE", help="LiteLLM's price map, for prices."
        ),
    ] = None,
    price_per_hour: Annotated[
        float | None,
        typer.Option(
            rich_help_panel="Bill", metavar="DOLLARS", help="What this machine costs, for the bill."
        ),
    ] = None,
    clock: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel="Bill",
            metavar="FILE",
            help="A file with seconds to add to the time by which entries live and bills go.",
        ),
    ] = None,
    kv_events: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Events",
            metavar="ADDRESS",
            help="Publish what the cache gains and loses, as vLLM does, e.g. tcp://127.0.0.1:5557.",
        ),
    ] = None,
    kv_events_replay: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Events",
            metavar="ADDRESS",
            help="Repeat there what a listener has missed.",
        ),
    ] = None,
    drain: options.Drain = 60.0,
) -> None:
    """Serve a model to OpenAI's and Anthropic's clients, and say what was reused.

    For example SmolLM2 with 2 GiB for conversations, and what does not fit there on disk:

        kvikk serve smollm2 --kv-memory 2GiB --disk-tier ~/kv:20GiB
    """
    from kvikk.engine.options import EngineOptions
    from kvikk.server.options import ServerOptions
    from kvikk.server.serve import run_server
    from kvikk.shapes.quantities import parse_bytes

    engine = options.engine_options(
        backend=backend,
        threads=threads,
        kv_memory=kv_memory,
        kv_dtype=kv_dtype,
        block_size=block_size,
        max_context=max_context,
        prefix_caching=not no_prefix_cache,
        speculation=not no_speculation,
        chat_template=chat_template,
        adapters=options.adapters(adapter),
        step_tokens=step_tokens,
        max_running=max_running,
        max_queue=max_queue,
        ledger_memory_bytes=parse_bytes(ledger_memory),
        tenant_share=tenant_share,
        eviction=eviction.replace("-", "_"),
        **options.tier_options(host_tier, disk_tier, redis_tier, redis_expire),
    )
    run_server(
        ServerOptions(
            engine=EngineOptions(model=model, **engine),
            host=host,
            port=port,
            api_keys=tuple(api_key or ()),
            operator_key=operator_key,
            max_body_bytes=parse_bytes(max_body),
            send_timeout_s=send_timeout,
            drain_s=drain,
            sleep_after_s=sleep_after,
            tenant_requests=tenant_requests,
            access_log=access_log,
            ledger_log=ledger_log,
            ledger_text=ledger_text,
            rules=rules,
            rules_file=rules_file,
            price_map=price_map,
            price_per_hour=price_per_hour,
            clock=clock,
            kv_events=kv_events,
            kv_events_replay=kv_events_replay,
            otlp_traces_endpoint=otlp_traces_endpoint,
        )
    )
