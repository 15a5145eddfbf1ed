"""How sizes are shown: a page a person reads at a glance, one JSON document, a plot."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kvikk.shapes.accelerators import TABLE_DATE
from kvikk.shapes.quantities import format_bytes
from kvikk.shapes.sizing import AtContext, Sizing
from kvikk.shapes.sizing_input import Sized

_out = Console(highlight=False, soft_wrap=True)


def print_json(sized: Sequence[Sized]) -> None:
    """One document: the model's figures, or those of several under ``models``."""
    documents = [_document(one) for one in sized]
    print(json.dumps(documents[0] if len(documents) == 1 else {"models": documents}))


def _document(one: Sized) -> dict[str, Any]:
    document = _figures(one.sizing)
    if one.published is not None:
        document["without_what_if"] = _figures(one.published)
    return document


def _figures(sizing: Sizing) -> dict[str, Any]:
    context = sizing.context_tokens
    at = sizing.at(context)
    reserved = sizing.reserved(context)
    choices = sizing.choices
    figures: dict[str, Any] = {
        "model": sizing.name,
        "model_type": sizing.shape.model_type,
        "num_layers": sizing.shape.num_layers,
        "key_dtype": sizing.dtypes.key.name,
        "value_dtype": sizing.dtypes.value.name,
        "bytes_per_token": sizing.cost.bytes_per_token,
        "bytes_per_token_at_context": sizing.cost.bytes_per_token_at(context),
        "fixed_bytes_per_conversation": sizing.cost.fixed_bytes,
        "context_tokens": context,
        "bytes_at_context": at.logical_bytes,
        "windows_full_at_tokens": sizing.flat_from_tokens,
        "engine": choices.engine,
        "tp": choices.options.tp,
        "reserved_bytes": reserved.total_bytes,
        "reserved_rules": reserved.rules,
        "rank_bytes_per_token": sizing.rank_cost.bytes_per_token,
        "rank_bytes_at_context": sizing.rank_cost.bytes_at(context),
        "weight_bytes": sizing.weight_bytes,
        "formula": [
            {
                "text": term.text,
                "kind": term.kind,
                "bytes_per_token": term.bytes_per_token,
                "window_tokens": term.window_tokens,
                "fixed_bytes": term.fixed_bytes,
            }
            for term in sizing.terms
        ],
        "context_beyond_weights": sizing.context_beyond_weights(choices.num_conversations or 1),
        "at_contexts": [_row(sizing, sizing.at(tokens)) for tokens in sizing.ladder()],
    }
    if choices.memory_bytes is not None:
        figures |= {
            "memory_bytes": choices.memory_bytes,
            "conversations": at.conversations,
            "total_tokens": None if at.conversations is None else at.conversations * context,
        }
        if sizing.device is not None:
            figures["cache_bytes"] = sizing.device.cache_bytes
        if choices.num_conversations is not None:
            figures["longest_context_tokens"] = sizing.longest_context(choices.num_conversations)
    figures |= _floor(sizing, at)
    return figures


def _row(sizing: Sizing, at: AtContext) -> dict[str, Any]:
    return {
        "context_tokens": at.context_tokens,
        "bytes_at_context": at.logical_bytes,
        "reserved_bytes": at.reserved_bytes,
        "conversations": at.conversations,
        **_floor(sizing, at),
    }


def _floor(sizing: Sizing, at: AtContext) -> dict[str, Any]:
    if at.floor is None:
        return {}
    price = sizing.choices.price_per_hour
    return {
        "floor_ms_per_token": at.floor.step_s * 1000,
        "floor_tokens_per_s": at.floor.tokens_per_s,
        "floor_conversations": at.floor.num_conversations,
        **(
            {}
            if price is None
            else {"floor_cost_per_million_tokens": at.floor.cost_per_million_tokens(price)}
        ),
    }


def print_sizing(one: Sized) -> None:
    """One model: its formula, the three figures, and what fits."""
    sizing = one.sizing
    _print_formula(sizing)
    if one.published is not None:
        _out.print(f"\nwithout the what-if, {_in_short(one.published)}")
    _out.print()
    _out.print(_ladder(sizing))
    for line in _remarks(sizing):
        _out.print(line)


def _in_short(sizing: Sizing) -> str:
    cost, context = sizing.cost, sizing.context_tokens
    return (
        f"{format_bytes(cost.bytes_per_token)} a token, {format_bytes(cost.bytes_at(context))} "
        f"at {context:,}"
    )


def _print_formula(sizing: Sizing) -> None:
    shape, cost, context = sizing.shape, sizing.cost, sizing.context_tokens
    _out.print(f"[bold]{sizing.name}[/bold]  {shape.model_type}, {shape.num_layers} layers")
    for term in sizing.terms:
        if term.fixed_bytes:
            _out.print(f"  {term.text} = {term.fixed_bytes:,} bytes a conversation ({term.kind})")
            continue
        until = f", up to {term.window_tokens:,} tokens" if term.window_tokens else ""
        kind = "" if term.kind == "full" else f" ({term.kind}{until})"
        _out.print(f"  {term.text} = {_bytes(term.bytes_per_token)}{kind}")
    _out.print()
    table = Table.grid(padding=(0, 2))
    slope = f"{_bytes(cost.bytes_per_token)}"
    table.add_row("each token", slope)
    if sizing.flat_from_tokens is not None:
        after = cost.bytes_per_token_at(context)
        table.add_row(f"each token after {context:,}", f"{_bytes(after)}")
    table.add_row("each conversation", f"{_bytes(cost.fixed_bytes)}")
    table.add_row(f"at {context:,} tokens", _bytes(cost.bytes_at(context)))
    reserved = sizing.reserved(context)
    if sizing.choices.engine != "logical":
        tp = sizing.choices.options.tp
        where = f", on each of {tp} devices" * (tp > 1)
        table.add_row(f"reserved by {reserved.engine}", f"{_bytes(reserved.total_bytes)}{where}")
    if sizing.weight_bytes is not None:
        table.add_row("weights", _bytes(sizing.weight_bytes))
    _out.print(table)
    if sizing.choices.engine != "logical":
        for rule in reserved.rules:
            _out.print(f"  [dim]{reserved.engine}: {rule}[/dim]")


def _bytes(amount: float) -> str:
    exact = f"{amount:,.0f}" if amount == int(amount) else f"{amount:,.1f}"
    return f"{exact} bytes" + (f" = {format_bytes(amount)}" if amount >= 1024 else "")


def _ladder(sizing: Sizing) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
    columns = ["context", "logical", "reserved"]
    rows = [sizing.at(tokens) for tokens in sizing.ladder()]
    with_memory = any(row.conversations is not None for row in rows)
    with_floor = any(row.floor is not None for row in rows)
    price = sizing.choices.price_per_hour
    columns += ["conversations", "tokens"] if with_memory else []
    columns += ["ms a token", "tokens/s"] if with_floor else []
    columns += ["a million tokens"] if with_floor and price is not None else []
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        cells = [
            f"{row.context_tokens:,}",
            format_bytes(row.logical_bytes),
            format_bytes(row.reserved_bytes),
        ]
        if with_memory:
            fitting = row.conversations or 0
            cells += [f"{fitting:,}", f"{fitting * row.context_tokens:,}"]
        if with_floor:
            cells += (
                [f"{row.floor.step_s * 1000:.2f}", f"{row.floor.tokens_per_s:,.0f}"]
                if row.floor
                else ["-", "-"]
            )
            if price is not None:
                cost = row.floor and row.floor.cost_per_million_tokens(price)
                cells.append("-" if cost is None else f"{cost:.3g}")
        table.add_row(*cells)
    return table


def _remarks(sizing: Sizing) -> list[str]:
    choices, context = sizing.choices, sizing.context_tokens
    remarks = []
    if choices.memory_bytes is not None:
        remarks.append(
            f"memory {format_bytes(choices.memory_bytes)} a device (GB is read as GiB, 2³⁰ bytes)"
        )
        if sizing.device is None:
            remarks.append("how many fit is not known without the weights: give --weights")
    if sizing.weight_bytes is not None:
        for many in sorted({1, choices.num_conversations or sizing.at(context).conversations or 1}):
            beyond = sizing.context_beyond_weights(many)
            who = "one conversation's cache" if many == 1 else f"{many:,} conversations' cache"
            if beyond is None:
                if many == 1:
                    remarks.append(f"{who} stays smaller than the weights")
            else:
                remarks.append(f"{who} outgrows the weights at {beyond:,} tokens")
    if choices.num_conversations is not None:
        longest = sizing.longest_context(choices.num_conversations)
        if longest is not None:
            remarks.append(
                f"{choices.num_conversations:,} conversations fit up to {longest:,} tokens each"
            )
    if sizing.at(context).floor is not None:
        remarks.append(
            "ms a token is a floor: weights and cache read once, for as many conversations as fit"
            if choices.num_conversations is None
            else f"ms a token is a floor, for {choices.num_conversations:,} conversations"
        )
        remarks.append(f"devices and their bandwidth as of {TABLE_DATE}")
    return [f"[dim]{remark}[/dim]" for remark in remarks]


def print_comparison(sized: Sequence[Sized]) -> None:
    """Models side by side, a row each."""
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
    table.add_column("model")
    with_memory = any(one.sizing.device is not None for one in sized)
    columns = ["layers", "a token", "then", "fixed", "context", "logical", "reserved", "weights"]
    for column in [*columns, *(["conversations"] if with_memory else [])]:
        table.add_column(column, justify="right")
    for sizing in (one.sizing for one in sized):
        at = sizing.at(sizing.context_tokens)
        cost = sizing.cost
        cells = [
            sizing.name,
            str(sizing.shape.num_layers),
            format_bytes(cost.bytes_per_token),
            format_bytes(cost.bytes_per_token_at(at.context_tokens)),
            format_bytes(cost.fixed_bytes),
            f"{at.context_tokens:,}",
            format_bytes(at.logical_bytes),
            format_bytes(at.reserved_bytes),
            "-" if sizing.weight_bytes is None else format_bytes(sizing.weight_bytes),
        ]
        if with_memory:
            cells.append("-" if at.conversations is None else f"{at.conversations:,}")
        table.add_row(*cells)
    _out.print(table)


def print_check(path: Path, one: Sized, *, as_json: bool) -> None:
    """A log's figures beside ours, line by line."""
    from kvikk.shapes.start_logs.check import check_log
    from kvikk.shapes.start_logs.records import Subject
    from kvikk.shapes.start_logs.variants import variants

    sizing = one.sizing
    options = sizing.choices.options
    subject = Subject(
        sizing.shape,
        sizing.choices.dtypes,
        options.tp,
        options.dp_attention,
        variants(one.config, sizing.shape),
    )
    engine, comparisons = check_log(path, subject)
    if as_json:
        lines = [
            {
                "line": comparison.line_number,
                "figure": comparison.figure,
                "printed": comparison.printed,
                "computed": comparison.computed,
                "agrees": comparison.agrees,
                "rule": comparison.rule,
            }
            for comparison in comparisons
        ]
        print(json.dumps({"engine": engine, "lines": lines}))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
    for column in ("line", "figure", "printed", "computed", "", "rule"):
        table.add_column(column, justify="right" if column in ("line", "printed") else "left")
    for comparison in comparisons:
        table.add_row(
            str(comparison.line_number),
            comparison.figure,
            comparison.printed,
            comparison.computed,
            "=" if comparison.agrees else "[red]≠[/red]",
            comparison.rule,
        )
    _out.print(f"{path.name}: {engine}")
    _out.print(table)


def write_plot(path: Path, sized: Sequence[Sized]) -> None:
    """Bytes by context, windows bending the line; and conversations, where memory is known."""
    from kvikk.plot import Chart, Series, write_svg

    sizings = [one.sizing for one in sized]
    longest = max(sizing.context_tokens for sizing in sizings)
    contexts = sorted({*(2**power for power in range(8, 41) if 2**power < longest), longest})
    by_bytes = [
        Series(
            sizing.name,
            [(tokens, sizing.cost.bytes_at(tokens) / 2**20) for tokens in contexts],
        )
        for sizing in sizings
    ]
    charts = [
        Chart(
            "One conversation's cache", "context, tokens", "MiB", by_bytes, log_x=True, log_y=True
        )
    ]
    fitting = [
        Series(
            sizing.name,
            [(tokens, max(sizing.conversations(tokens) or 0, 0)) for tokens in contexts],
        )
        for sizing in sizings
        if sizing.device is not None
    ]
    if fitting:
        charts.append(
            Chart("Conversations that fit", "context, tokens", "conversations", fitting, log_x=True)
        )
    write_svg(path, charts)
